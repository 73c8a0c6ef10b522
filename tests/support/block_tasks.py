"""The tasks of ranks that load another number of ranks' tensors, of which they need parts; see :mod:`ranks`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import fastio
from fastio.distributed import HuggingFaceReader, HuggingFaceWriter, Reader, Writer
from objects import tensor_of
from rank_tasks import mesh_of


class Loaded(NamedTuple):
    """The bytes of a rank's tensors, those that the kernel gave to it, and whether all values are right."""

    wanted: int
    read: int
    are_right: bool
    verified: bool


def whole(seed: int) -> dict[str, torch.Tensor]:
    """Tensors whose rows no number of ranks divides."""
    return {
        "large": tensor_of(torch.float32, 10_007, 256, seed=seed),
        "half": tensor_of(torch.bfloat16, 30_011, 129, seed=seed + 1),
        "line": tensor_of(torch.float64, 500_009, seed=seed + 2),
    }


def divided(mesh: DeviceMesh, seed: int) -> dict[str, Any]:
    return {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in whole(seed).items()}


def _group(mesh: DeviceMesh, count: int) -> Any:
    return dist.group.WORLD if count == dist.get_world_size() else mesh.get_group()


def save(folder: str, count: int, kind: str, policy: str = "auto") -> None:
    """Save by the first ``count`` ranks: by DCP, in safetensors too, or a step."""
    mesh = mesh_of(count)
    if mesh is None:
        return
    state, group = divided(mesh, 1), _group(mesh, count)
    if kind == "dcp":
        dcp.save(state, storage_writer=Writer(folder, policy=policy), process_group=group)
    elif kind == "safetensors":
        writer = HuggingFaceWriter(folder, save_distributed=True, policy=policy)
        dcp.save(state, storage_writer=writer, process_group=group)
    else:
        with fastio.Checkpointer(folder, process_group=group, policy=policy) as checkpointer:
            checkpointer.save(1, state)


def load(folder: str, count: int, kind: str) -> Loaded | None:
    """Load by the first ``count`` ranks; None on the others. Nothing bypasses the calls that the kernel counts."""
    mesh = mesh_of(count)
    if mesh is None:
        return None
    state, group = divided(mesh, 7), _group(mesh, count)
    expected = divided(mesh, 1)
    before = _read()
    with fastio.record() as transfers:
        if kind in ("dcp", "safetensors"):
            reader = (Reader if kind == "dcp" else HuggingFaceReader)(folder, policy="posix")
            dcp.load(state, storage_reader=reader, process_group=group)
        else:
            options: dict[str, Any] = {"process_group": group, "read_only": True, "policy": "posix"}
            with fastio.Checkpointer(folder, **options) as checkpointer:
                assert checkpointer.restore(into=state) is not None
    read = _read() - before
    return Loaded(
        sum(_local(tensor).nbytes for tensor in state.values()),
        read,
        all(torch.equal(_local(state[name]), _local(tensor)) for name, tensor in expected.items()),
        all(transfer.verified for transfer in transfers),
    )


def _local(tensor: DTensor) -> torch.Tensor:
    return tensor.to_local()


def _read() -> int:
    """The bytes that this process got from read calls."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])
