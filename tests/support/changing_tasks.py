"""The task of ranks that save a state again and again, changed in one way each time; see :mod:`ranks`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import fastio
from fastio.checkpoint import RandomState
from rank_tasks import mesh_of
from step_tasks import entries

State = dict[str, Any]


def _state(mesh: Any) -> State:
    torch.manual_seed(0)  # plain tensors are the same on all ranks
    tied = torch.arange(6.0)
    return {
        "weights": OrderedDict((f"w{n}", _sharded(mesh, float(n))) for n in range(3)),
        "optimizer": {
            "state": {0: {"step": torch.tensor(1.0), "avg": tied}, 1: {"avg": tied}},
            "groups": [{"lr": 0.5}],
        },
        "pair": (torch.ones(2), 7),
        "zero": 0.0,
        "text": "x",
        "empty": [],
        "random": RandomState(),
        "model": torch.nn.Linear(2, 3),
    }


def _sharded(mesh: Any, value: float) -> Any:
    return distribute_tensor(torch.full((4, 3), value), mesh, [Shard(0)])


def _local(state: State) -> Any:
    return state["weights"]["w0"].to_local()


def _set(path: str, make: Callable[[State, Any], Any]) -> Callable[[State, Any], None]:
    def change(state: State, mesh: Any) -> None:
        holder: Any = state
        *above, last = path.split(".")
        for key in above:
            holder = holder[int(key) if key.isdigit() else key]
        holder[int(last) if last.isdigit() else last] = make(state, mesh)

    return change


def _in_place(state: State, mesh: Any) -> None:
    _local(state).add_(1)


def _other_data(state: State, mesh: Any) -> None:
    parameter = state["model"].weight
    parameter.data = parameter.data.clone()


def _other_shape(state: State, mesh: Any) -> None:
    state["optimizer"]["state"][0]["avg"].resize_(2, 3)


def _reordered(state: State, mesh: Any) -> None:
    state["weights"]["w1"] = state["weights"].pop("w1")


def _frozen(state: State, mesh: Any) -> None:
    state["model"].weight.requires_grad_(False)


def _attribute(state: State, mesh: Any) -> None:
    state["weights"].note = "kept"


def _no_attribute(state: State, mesh: Any) -> None:
    del state["weights"].note


CHANGES: list[Callable[[State, Any], None]] = [
    lambda state, mesh: None,
    _in_place,
    _set("zero", lambda state, mesh: -0.0),
    _set("zero", lambda state, mesh: False),
    _set("zero", lambda state, mesh: True),
    _set("zero", lambda state, mesh: 1),
    _set("text", lambda state, mesh: "y" * 2000),
    _set("optimizer.groups.0.lr", lambda state, mesh: 0.25),
    _set("optimizer.groups.0.lr", lambda state, mesh: 1),
    _set("pair", lambda state, mesh: (state["pair"][0], 8)),
    _set("empty", lambda state, mesh: [{"a": 1}]),
    _set("empty", lambda state, mesh: [{"a": 2}]),
    _set("empty", lambda state, mesh: [torch.ones(1)]),
    _set("empty", lambda state, mesh: {"of": torch.Size([3])}),
    _attribute,
    _in_place,
    _no_attribute,
    _set("weights.w2", lambda state, mesh: _sharded(mesh, 9.0)),
    _set("weights.w2", lambda state, mesh: state["weights"]["w1"]),
    _in_place,
    _set("weights.w2", lambda state, mesh: torch.full((4, 3), 5.0)),
    _set("weights.w2", lambda state, mesh: _sharded(mesh, 3.0).bfloat16()),
    _reordered,
    _set("optimizer.state.1.avg", lambda state, mesh: torch.arange(6.0)),
    _set("optimizer.state.1.avg", lambda state, mesh: state["optimizer"]["state"][0]["avg"].view(6)),
    _set("optimizer.state.1.avg", lambda state, mesh: state["optimizer"]["state"][0]["avg"][:3]),
    _set("optimizer.state.0.step", lambda state, mesh: torch.tensor(2.0)),
    _set("optimizer.state.0.step", lambda state, mesh: torch.tensor([1 + 2j]).conj()),
    _other_shape,
    _other_data,
    _frozen,
    _set("extra", lambda state, mesh: {"rank": torch.zeros(2)}),
    lambda state, mesh: state.pop("extra"),
]


def save_changing(folder: str, options: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Save a state after each change; returns what was saved and what comes back, with what the values do not show."""
    mesh = mesh_of(2)
    if mesh is None:
        return []
    state, answers = _state(mesh), []
    with fastio.Checkpointer(folder, process_group=mesh.get_group(), keep=1, **options) as checkpointer:
        for step, change in enumerate(CHANGES):
            change(state, mesh)
            saved = _described(state)
            checkpointer.save(step, state)
            _local(state).add_(0)
            checkpointer.wait()
            restored = checkpointer.restore(weights_only=False)
            assert restored is not None
            assert restored.step == step
            answers.append((saved, _described(restored.state)))
    return answers


def _described(state: State) -> dict[str, Any]:
    """All values of a state with their types, and which of its tensors are one."""
    tensors: dict[int, str] = {}
    found: dict[str, Any] = {}

    def visit(path: str, value: Any) -> None:
        if hasattr(value, "state_dict"):
            value = value.state_dict()
        if isinstance(value, torch.Tensor):
            full = value.full_tensor() if isinstance(value, DTensor) else value
            found[path] = (full.dtype, full.detach().clone().tolist(), tensors.setdefault(id(value), path))
        elif isinstance(value, (dict, list, tuple)):
            if isinstance(value, dict):
                found[path] = list(value), vars(value).get("note") if type(value) is OrderedDict else None
            for key, entry in entries(value):
                visit(f"{path}.{key}", entry)
        else:
            found[path] = type(value).__name__, repr(value)

    visit("", {name: value for name, value in state.items() if name != "random"})
    return found
