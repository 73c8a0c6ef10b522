"""The tasks of the processes of a pool, for tests of a Checkpointer of several ranks; see :mod:`ranks`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import fastio
from fastio.checkpoint import RandomState
from rank_tasks import mesh_of

_hybrid: dict[str, DeviceMesh] = {}


def hybrid_mesh() -> DeviceMesh:
    """A mesh of two by two ranks: replicas of shards."""
    if "mesh" not in _hybrid:
        _hybrid["mesh"] = DeviceMesh("cpu", torch.arange(4).view(2, 2), mesh_dim_names=("replicate", "shard"))
    return _hybrid["mesh"]


def network(seed: int) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(37, 65), torch.nn.ReLU(), torch.nn.Linear(65, 33), torch.nn.BatchNorm1d(33)
    )


def training(kind: str, mesh: Any, seed: int, steps: int = 2) -> dict[str, Any]:
    """A model and AdamW after some steps, divided among ranks as ``kind`` says."""
    model: Any = network(seed)
    if kind in ("fsdp", "hsdp"):
        for layer in (model[0], model[2]):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif kind == "tp":
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    elif kind == "ddp":
        model = DistributedDataParallel(model, process_group=mesh.get_group())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for number, parameter in enumerate(model.parameters()):
            parameter.grad = torch.full_like(parameter, 0.5 + number)
        optimizer.step()
    rank = dist.get_rank()
    return {
        "model": model,
        "optimizer": optimizer,
        "random": RandomState(),
        "generator": generator,
        "losses": [seed + 0.5, rank],
        "notes": {"text": "x", 3: (1, None)},
        "own": {f"rank {rank}": torch.full((3,), seed + rank)},
    }


def entries(value: Any) -> Iterable[tuple[Any, Any]]:
    """The keys and values of a dict, a list or a tuple."""
    return value.items() if isinstance(value, dict) else enumerate(value)


def whole(state: dict[str, Any]) -> dict[str, Any]:
    """All tensors and values of a state, whole, by their places."""
    found: dict[str, Any] = {}

    def visit(path: str, value: Any) -> None:
        if hasattr(value, "state_dict"):
            value = value.state_dict()
        if isinstance(value, torch.Generator):
            value = value.get_state()
        if isinstance(value, DTensor):
            value = value.full_tensor()
        if isinstance(value, (dict, list, tuple)):
            for key, entry in entries(value):
                visit(f"{path}.{key}", entry)
        else:
            found[path] = value.detach().clone().tolist() if isinstance(value, torch.Tensor) else value

    visit("", state)
    return found


def mesh_for(kind: str, count: int) -> Any:
    return hybrid_mesh() if kind == "hsdp" else mesh_of(count)


def group_of(mesh: Any, count: int) -> Any:
    return dist.group.WORLD if count == dist.get_world_size() else mesh.get_group()


def save(folder: str, kind: str, count: int, seed: int, options: dict[str, Any] | None = None) -> dict[str, Any]:
    """Save a step on the first ``count`` ranks; returns the state."""
    mesh = mesh_for(kind, count)
    if mesh is None:
        return {}
    state = training(kind, mesh, seed)
    torch.manual_seed(seed + dist.get_rank())
    with fastio.Checkpointer(folder, process_group=group_of(mesh, count), **(options or {})) as checkpointer:
        saved = whole(state)
        handle = checkpointer.save(seed, state, {"seed": seed})
        for parameter in state["model"].parameters():  # after the copy
            (parameter.to_local() if isinstance(parameter, DTensor) else parameter).detach().zero_()
        assert handle.written.result(60).nbytes > 0
        assert checkpointer.steps() == [seed]
        assert checkpointer.verify(seed) > 0
    return saved


def restore(folder: str, kind: str, count: int, seed: int, steps: int = 0) -> dict[str, Any]:
    """Restore the newest step into another training; returns the state."""
    mesh = mesh_for(kind, count)
    if mesh is None:
        return {}
    state = training(kind, mesh, seed + 1000, steps)
    with fastio.Checkpointer(folder, process_group=group_of(mesh, count), read_only=True) as checkpointer:
        restored = checkpointer.restore(into=state)
        assert restored is not None
        assert restored.metadata == {"seed": restored.step}
        return whole(restored.state)


SHARED = ("model", "optimizer", "generator", "losses", "notes")
"""The entries that any number of ranks can restore."""


def reshard(folder: str, kind: str, count: int, seed: int, steps: int = 0) -> dict[str, Any]:
    """Restore the newest step into a training on another number of ranks; returns what all have."""
    mesh = mesh_for(kind, count)
    if mesh is None:
        return {}
    state = training(kind, mesh, seed + 1000, steps)
    into = {name: state[name] for name in SHARED}
    group = group_of(mesh, count)
    with fastio.Checkpointer(folder, process_group=group, read_only=True) as checkpointer:
        restored = checkpointer.restore(into=into)
        assert restored is not None
        assert restored.state is into
        return whole(into)


def save_one(folder: str, seed: int) -> dict[str, Any]:
    """Save a step by rank 0 alone; returns its state."""
    if dist.get_rank() > 0:
        return {}
    state = training("one", None, seed)
    with fastio.Checkpointer(folder, process_group=None) as checkpointer:
        checkpointer.save(seed, {name: state[name] for name in SHARED})
    return whole({name: state[name] for name in SHARED})


def torch_load(folder: str, kind: str, count: int, seed: int) -> dict[str, Any]:
    """Load a step by torch's own planner and reader; returns the tensors and values."""
    mesh = mesh_for(kind, count)
    if mesh is None:
        return {}
    state = training(kind, mesh, seed + 1000)
    part = {"model": state["model"].state_dict(), "optimizer": state["optimizer"].state_dict(), "losses": []}
    dcp.load(part, storage_reader=dcp.FileSystemReader(folder), process_group=group_of(mesh, count))
    return whole(part)


def over_one_array(folder: str) -> Any:
    """Save tensors whose storages begin at one address, the shorter one first; returns what comes back."""
    mesh = mesh_of(2)
    if mesh is None:
        return None
    array = np.arange(4)
    with fastio.Checkpointer(folder, process_group=mesh.get_group()) as checkpointer:
        checkpointer.save(1, {"few": torch.from_numpy(array[:2]), "all": torch.from_numpy(array)})
        restored = checkpointer.restore()
        assert restored is not None
        return restored.state["few"].tolist(), restored.state["all"].tolist()


def into_shared_memory(folder: str) -> Any:
    """Restore two overlapping tensors, and an expanded one, into other ones; returns what these hold then."""
    mesh = mesh_of(2)
    if mesh is None:
        return None
    saved = torch.arange(6)
    with fastio.Checkpointer(folder, process_group=mesh.get_group()) as checkpointer:
        checkpointer.save(1, {"a": saved[:4], "b": saved[2:], "expanded": torch.tensor([8]).expand(3)})
        live, expanded = torch.zeros(6, dtype=torch.long), torch.tensor([0]).expand(3)
        into = {"a": live[:4], "b": live[2:], "expanded": expanded}
        checkpointer.restore(into=into)
        same = into["a"].tolist(), into["b"].tolist()
        other = torch.full((7,), 9)
        try:
            checkpointer.restore(into={"a": other[:4], "b": other[3:]})
        except fastio.RankError as error:
            return (same, other.tolist(), str(error)), expanded.tolist()
        return None
