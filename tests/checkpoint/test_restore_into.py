"""Restores into live objects: tensors in place, parts of a state, other shapes, other devices."""

from __future__ import annotations

import pickle
import re
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trainings
import warm_python
from accelerators import DEVICE
from fastio.checkpoint import Checkpointer, RandomState
from fastio.errors import CheckpointError, CorruptFileError
from objects import DTYPES, tensor_of
from trainings import folder_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_live_tensors_are_filled_in_place(folder: Path) -> None:
    state, live = trainings.make(), trainings.make(seed=1)
    trainings.train(state)
    trainings.train(live)
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(0, state)
        tensors = [*live["model"].state_dict().values()]
        tensors += [value for one in live["optimizer"].state.values() for value in one.values()]
        addresses = [tensor.data_ptr() for tensor in tensors]
        checkpointer.restore(into=live)
    assert trainings.differ(state, live) == ""
    now = [*live["model"].state_dict().values()]
    now += [value for one in live["optimizer"].state.values() for value in one.values()]
    assert [tensor.data_ptr() for tensor in now] == addresses
    assert not any(
        parameter.grad is not None and parameter.grad.isnan().any() for parameter in live["model"].parameters()
    )


@pytest.mark.parametrize("incremental", [False, True])
def test_sparse_tensors_are_restored_with_torchs_invariant_checks(folder: Path, incremental: bool) -> None:
    """torch checks the indices when it makes such a tensor (always in torch 2.6), so they must be loaded by then."""

    def make(seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        large = (torch.rand(3_000_000) < 0.5).float().to_sparse()
        return {"model": nn.Linear(300, 300), "large": large, "rest": torch.rand(9), "turn": 0}

    state, live = make(0), make(1)
    weight = live["model"].weight
    with (
        torch.sparse.check_sparse_tensor_invariants(True),
        Checkpointer(folder, incremental=incremental) as checkpointer,
    ):
        for turn in range(2):  # the second step links to the first
            state["turn"] = turn
            state["rest"].add_(1)
            checkpointer.save(turn, state)
        restored = checkpointer.restore()
        assert restored is not None
        checkpointer.restore(into=live)
    for found in (restored.state, live):
        assert torch.equal(found["large"].indices(), state["large"].indices())
        assert torch.equal(found["large"].values(), state["large"].values())
        assert torch.equal(found["rest"], state["rest"])
        assert found["turn"] == 1
    assert live["model"].weight is weight
    assert torch.equal(weight, state["model"].weight)


PEAK = """
import sys
import torch
from fastio.checkpoint import Checkpointer

def status(field):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))

model = torch.nn.Linear(4096, 4096)  # 64 MiB
optimizer = torch.optim.AdamW(model.parameters())
model.weight.grad = torch.ones_like(model.weight)
optimizer.step()
optimizer.zero_grad()
with Checkpointer(sys.argv[1], read_only=True) as checkpointer:
    open("/proc/self/clear_refs", "w").write("5")
    before = status("VmHWM")
    checkpointer.restore(into={"model": model, "optimizer": optimizer})
    print(status("VmHWM") - before)
"""


def test_restoring_in_place_needs_no_second_copy_in_memory(folder: Path) -> None:
    model = nn.Linear(4096, 4096)
    optimizer = torch.optim.AdamW(model.parameters())
    model.weight.grad = torch.ones_like(model.weight)
    optimizer.step()
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(0, {"model": model, "optimizer": optimizer})
    ended = warm_python.run(PEAK, str(folder))
    assert int(ended.stdout) < 48 << 20  # 192 MiB were read


def test_restore_into_part_of_the_state_changes_only_that_part(folder: Path) -> None:
    state, other = trainings.make(), trainings.make(seed=1)
    trainings.train(state)
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(0, state)
        restored = checkpointer.restore(into={"model": other["model"], "step": None})
    assert restored is not None
    assert restored.state["step"] == 1
    assert set(restored.state) == {"model", "step"}
    assert trainings.differ({"model": other["model"]}, {"model": state["model"]}) == ""
    assert not other["optimizer"].state


@pytest.mark.parametrize("bare", [True, False])
def test_single_object_and_list_are_restored(folder: Path, bare: bool) -> None:
    model, other = nn.Linear(3, 3), nn.Linear(3, 3)
    generator = torch.Generator().manual_seed(4)
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(0, model if bare else [model, generator])
        drawn = torch.rand(3, generator=generator)
        later = torch.Generator()
        restored = checkpointer.restore(into=other if bare else [other, later])
    assert restored is not None
    assert torch.equal(model.weight, other.weight)
    if not bare:
        assert restored.state == [other, later]
        assert torch.equal(torch.rand(3, generator=later), drawn)


def test_tied_transposed_cast_and_small_views_get_the_saved_values(folder: Path) -> None:
    base = torch.randn(40, 30)
    tied = nn.Linear(30, 30, bias=False)
    saved = {
        "one": base[3:9].clone(), "same": None, "transposed": torch.randn(20, 30).t(), "cast": torch.randn(50),
        "view": base[5], "strided": base[:, 2], "last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "empty": torch.empty(0, 3), "number": torch.tensor(7), "tied": [tied.weight, tied.weight],
    }  # fmt: skip
    saved["same"] = saved["one"]
    live = {
        "one": torch.zeros(6, 30), "same": torch.zeros(6, 30), "transposed": torch.zeros(30, 20),
        "cast": torch.zeros(50, dtype=torch.float64), "view": torch.zeros(30), "strided": torch.zeros(40),
        "last": torch.zeros(2, 3, 4, 5), "empty": torch.zeros(0, 3), "number": torch.tensor(0),
        "tied": [torch.zeros(30, 30), torch.zeros(30, 30)],
    }  # fmt: skip
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(0, saved)
        checkpointer.restore(into=live)
    for name, tensor in live.items():
        for one, expected in zip(
            tensor if isinstance(tensor, list) else [tensor],
            saved[name] if name == "tied" else [saved[name]],
            strict=True,
        ):
            assert torch.equal(one, expected.to(one.dtype)), name


def test_live_tensors_of_every_dtype_are_filled_whatever_their_strides(folder: Path) -> None:
    stored = {f"{dtype}": tensor_of(dtype, 4, 6, seed=1) for dtype in DTYPES}
    live = {name: torch.empty_like(tensor).view(6, 4) for name, tensor in stored.items()}
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(0, {name: tensor.t() for name, tensor in stored.items()})
        checkpointer.restore(into=live)
    for name, tensor in stored.items():  # as bytes: torch 2.8 copies no float4
        expected = tensor.view(torch.uint8).view(4, 6, tensor.itemsize).transpose(0, 1)
        assert torch.equal(live[name].view(torch.uint8).view(6, 4, tensor.itemsize), expected), name


def test_live_tensors_that_share_a_part_of_their_memory_need_to_be_saved_so(folder: Path) -> None:
    memory, kept, base = torch.zeros(20), torch.zeros(4), torch.arange(20.0)
    live = {"kept": kept, "first": memory[:12], "second": memory[8:]}
    model = nn.Linear(3, 2)
    with Checkpointer(folder, keep=None) as checkpointer:
        checkpointer.save(0, {"kept": torch.ones(4), "first": torch.ones(12), "second": torch.full((12,), 2.0)})
        with pytest.raises(
            CheckpointError, match=r"state\['first'\] and state\['second'\] share a part of their memory"
        ):
            checkpointer.restore(into=live)
        assert not memory.any()
        assert not kept.any()
        checkpointer.restore(into={"first": memory[:12], "second": memory[:12]})  # tied as a whole: the last is kept
        assert memory.tolist() == [2.0] * 12 + [0.0] * 8
        checkpointer.save(1, {"kept": kept, "first": base[:12], "second": base[8:]})
        checkpointer.restore(into=live)
        assert torch.equal(memory, base)
        checkpointer.save(2, {"model": model, "row": torch.ones(3)})
        with pytest.raises(CheckpointError, match=r"state\['row'\] and state\['model'\]: its weight share"):
            checkpointer.restore(into={"model": model, "row": model.weight.detach()[0]})
        checkpointer.save(3, {"even": torch.ones(10), "odd": torch.zeros(10)})
        checkpointer.restore(into={"even": memory[::2], "odd": memory[1::2]})  # no byte in common
    assert memory.tolist() == [1.0, 0.0] * 10


def test_mismatched_shape_raises_and_changes_nothing(folder: Path) -> None:
    live = {"model": nn.Linear(3, 3), "tensor": torch.zeros(4), "nested": {"a": torch.zeros(1)}}
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(0, {"model": nn.Linear(3, 3), "tensor": torch.ones(5), "nested": {"b": torch.ones(1)}})
        before = live["model"].weight.clone()
        with pytest.raises(CheckpointError, match=re.escape("state['tensor'] is a tensor of shape (4,)")):
            checkpointer.restore(into=live)
        with pytest.raises(CheckpointError, match=re.escape("state['nested']['a'] was not saved: there are 'b'")):
            checkpointer.restore(into={"nested": live["nested"]})
        with pytest.raises(CheckpointError, match=r"state\['model'\]\['x'\] was not saved"):
            checkpointer.restore(into={"model": {"x": torch.zeros(1)}})
        assert torch.equal(live["model"].weight, before)
        with pytest.raises(CheckpointError, match=r"'weight' has shape \(3, 4\), saved was \(3, 3\); nothing was rest"):
            checkpointer.restore(into={"model": nn.Linear(4, 3)})


def test_another_model_or_optimizer_is_refused_before_anything_is_overwritten(folder: Path) -> None:
    def state_of(*sizes: int, groups: int = 1) -> dict[str, Any]:
        layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
        parameters = [{"params": list(layer.parameters())} for layer in layers[:groups]]
        return {"model": nn.Sequential(*layers), "optimizer": torch.optim.SGD(parameters)}

    with Checkpointer(folder) as checkpointer:
        checkpointer.save(0, state_of(8, 8, 8))
        for other, named in (
            (state_of(8, 8, 4), r"'1.weight' has shape \(4, 8\), saved was \(8, 8\)"),
            (state_of(8, 8, 8, 8), "'2.weight' was not saved"),
            (state_of(8, 8), "'1.weight' was saved, and the module lacks it"),
            (state_of(8, 8, 8, groups=2), r"\['optimizer'\], an SGD, .*its groups have 2, 2 parameters, saved were 2"),
        ):
            before = deepcopy(other["model"].state_dict())
            with pytest.raises(CheckpointError, match=f"cannot take.*{named}|{named}.*nothing was restored"):
                checkpointer.restore(into=other)
            assert all(torch.equal(before[name], tensor) for name, tensor in other["model"].state_dict().items())


def test_plain_objects_need_weights_only_false(folder: Path) -> None:
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(0, {"path": Path("a/b"), "tensor": torch.ones(3)})
        with pytest.raises(pickle.UnpicklingError, match="weights_only=False"):
            checkpointer.restore()
        restored = checkpointer.restore(weights_only=False, into={"path": None, "tensor": torch.zeros(3)})
    assert restored is not None
    assert restored.state["path"] == Path("a/b")
    assert restored.state["tensor"].tolist() == [1, 1, 1]


def test_random_state_restores_the_generators_of_all_libraries() -> None:
    import random

    import numpy as np

    state = RandomState().state_dict()
    drawn = random.random(), np.random.rand(), torch.rand(1).item(), random.gauss(0, 1)
    RandomState().load_state_dict(state)
    assert drawn == (random.random(), np.random.rand(), torch.rand(1).item(), random.gauss(0, 1))


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"incremental": True}, {"memory_budget": "32MiB"}, {"asynchronous": False}])
def test_gpu_tensors_are_saved_and_restored(folder: Path, options: dict[str, Any]) -> None:
    state = {
        "large": torch.randn(12 << 20, device=DEVICE),
        "small": torch.arange(7, device=DEVICE),
        "cpu": torch.ones(3),
    }
    live = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    with Checkpointer(folder, **options) as checkpointer:
        for step in range(3):
            expected = {name: tensor.clone() for name, tensor in state.items()}
            checkpointer.save(step, state)
            state["small"].add_(1)
            address = live["large"].data_ptr()
            checkpointer.verify(step)
            checkpointer.restore(step, into=live)
            assert live["large"].data_ptr() == address
            assert all(torch.equal(live[name], tensor) for name, tensor in expected.items())
            restored = checkpointer.restore(step, map_location=DEVICE)
            assert restored is not None
            assert restored.state["cpu"].device.type == DEVICE
            assert torch.equal(restored.state["large"], expected["large"])


def test_unsupported_torch_saves_and_restores_by_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If fastio does not support a torch's serialization, torch's own is used, which costs only speed."""
    state, other = trainings.make(), trainings.make(seed=1)
    trainings.train(state)
    with Checkpointer(folder) as checkpointer, monkeypatch.context() as patch:
        checkpointer.save(0, state)
        checkpointer.wait()
        patch.setattr("fastio.formats.pt.torch_probe.unsupported_reason", lambda: "this torch is from the future")
        checkpointer.restore(0, into=other)
        assert trainings.differ(state, other) == ""
        trainings.train(state)
        checkpointer.save(1, state)
        trainings.train(other)
        assert checkpointer.verify(1) > 0
        restored = checkpointer.restore(into=other)
        assert restored is not None
        assert restored.step == 1
        assert trainings.differ(state, other) == ""
        path = folder_of(folder, 1) / "state.pt"
        torch.load(path)
        path.write_bytes(path.read_bytes().replace(b"data.pkl", b"data.pkx"))
        with pytest.raises(CorruptFileError):
            checkpointer.restore(1)
        path.write_bytes(path.read_bytes().replace(b"data.pkx", b"data.pkl"))
    with Checkpointer(folder) as checkpointer:
        checkpointer.restore(1, into=other)
        assert trainings.differ(state, other) == ""
