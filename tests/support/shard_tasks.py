"""The tasks of the processes of a pool, for tests of checkpoints in safetensors; see :mod:`ranks`."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import fastio
from fastio.distributed import HuggingFaceReader, HuggingFaceWriter, consolidate
from objects import tensor_of
from rank_tasks import mesh_of

PLACEMENTS = {
    "rows": Shard(0), "uneven": Shard(0), "columns": Shard(1), "middle": Shard(1), "replicated": Replicate(),
}  # fmt: skip


def whole(seed: int) -> dict[str, torch.Tensor]:
    """The tensors; torch's own consolidation takes floats alone."""
    return {
        "rows": tensor_of(torch.float32, 64, 1000, seed=seed),
        "uneven": tensor_of(torch.float32, 37, 100, seed=seed + 1),
        "columns": tensor_of(torch.bfloat16, 300, 128, seed=seed + 2),
        "middle": tensor_of(torch.float16, 6, 40, 5, seed=seed + 3),
        "replicated": tensor_of(torch.float64, 9000, seed=seed + 4),
        "plain": tensor_of(torch.float32, 100, seed=seed + 5),
        "scalar": torch.tensor(seed + 0.5),
    }


def sharded(mesh: Any, seed: int) -> dict[str, Any]:
    """The tensors, divided among the ranks of a mesh."""
    state: dict[str, Any] = whole(seed)
    for name, placement in PLACEMENTS.items():
        state[name] = distribute_tensor(state[name], mesh, [placement])
    return state


def save(folder: str, count: int, seed: int, kind: str = "fastio", options: dict[str, Any] | None = None) -> None:
    """Save what ``count`` ranks hold of the tensors."""
    mesh = mesh_of(count)
    if mesh is None:
        return
    make = HuggingFaceWriter if kind == "fastio" else HuggingFaceStorageWriter
    writer = make(folder, save_distributed=True, **(options or {}))
    dcp.save(sharded(mesh, seed), storage_writer=writer, process_group=mesh.get_group())


def save_copies(folder: str, count: int, seed: int, options: dict[str, Any] | None = None) -> None:
    """Save tensors of which each rank has all, as DDP has them: DCP divides them among the ranks."""
    mesh = mesh_of(count)
    if mesh is not None:
        writer = HuggingFaceWriter(folder, **(options or {}))
        dcp.save(whole(seed), storage_writer=writer, process_group=mesh.get_group())


def load(folder: str, count: int, seed: int, kind: str = "fastio") -> tuple[list[str], int, int, bool]:
    """Load on ``count`` ranks.

    Returns the names that differ, the bytes that the rank read, those of the tensors that it has, and whether all that
    was read was verified.
    """
    mesh = mesh_of(count)
    if mesh is None:
        return [], 0, 0, True
    state = sharded(mesh, seed + 1000)
    reader = HuggingFaceReader(folder) if kind == "fastio" else HuggingFaceStorageReader(folder)
    with fastio.record() as transfers:
        dcp.load(state, storage_reader=reader, process_group=mesh.get_group())
    found = {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in state.items()}
    wrong = [name for name, value in whole(seed).items() if not torch.equal(found[name], value)]
    local = [value.to_local() if isinstance(value, DTensor) else value for value in state.values()]
    read = sum(transfer.nbytes for transfer in transfers)
    return wrong, read, sum(value.nbytes for value in local), all(transfer.verified for transfer in transfers)


def consolidate_together(folder: str, destination: str, options: dict[str, Any]) -> tuple[int, bool, int]:
    """Consolidate on all ranks. Returns the bytes that the rank wrote, whether it verified, and the files in all."""
    with fastio.record() as transfers:
        found = consolidate(folder, destination, group=True, **options)
    return sum(transfer.nbytes for transfer in transfers if transfer.op == "save"), found.verified, len(found.files)


def save_and_die(folder: str, count: int, seed: int, dying: int) -> None:
    """Save, while one rank is killed after it made its file and before that is complete."""
    rank = dist.get_rank()

    def die(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    save(folder, count, seed, options={"progress": die if rank == dying else None})
