"""Tasks that save steps of ranks that mostly did not change; see :mod:`step_tasks`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import fastio
import step_fault_tasks
from rank_tasks import mesh_of

PARTS, ROWS = 10, 1024
PART_BYTES = ROWS * 16 * 4


def whole(seeds: list[int]) -> dict[str, torch.Tensor]:
    """Whole tensors, one of each seed."""
    rows = torch.arange(ROWS)[:, None]
    return {f"part{n}": torch.full((ROWS, 16), seed).float() + rows for n, seed in enumerate(seeds)}


def state_of(mesh: Any, seeds: list[int]) -> dict[str, Any]:
    """DTensors of one seed each, a tensor of all ranks, one of each rank, and an object that changes."""
    rank = dist.get_rank()
    parts: dict[str, Any] = {n: distribute_tensor(one, mesh, [Shard(0)]) for n, one in whole(seeds).items()}
    return parts | {"all": torch.arange(3000), f"of {rank}": torch.full((3000,), rank), "empty": torch.empty(0, 4)}


def change(state: dict[str, Any], number: int) -> None:
    state[f"part{number}"].to_local().add_(1)


def parts_of(state: dict[str, Any]) -> dict[str, Any]:
    """The values of the DTensors, whole."""
    whole = {n: value.full_tensor() if isinstance(value, DTensor) else value for n, value in state.items()}
    return {name: value.tolist() for name, value in whole.items() if name.startswith("part")}


def data_of(folder: str, step: int, rank: int) -> set[tuple[str, int, int]]:
    """The name, inode and size of each data file of a rank."""
    paths = (Path(folder) / f"step-{step:010d}").glob(f"__{rank}_*.distcp")
    return {(path.name, path.stat().st_ino, path.stat().st_size) for path in paths}


def save(folder: str, count: int, changes: list[int], options: dict[str, Any]) -> Any:
    """Save a step before, and after each change of a part; returns each step's files of this rank, and its values."""
    mesh = mesh_of(count)
    if mesh is None:
        return None
    rank = dist.get_rank()
    group = dist.group.WORLD if count == dist.get_world_size() else mesh.get_group()
    state = state_of(mesh, list(range(PARTS)))
    files, values = [], []
    with fastio.Checkpointer(folder, process_group=group, incremental=True, **options) as checkpointer:
        for step, number in enumerate([-1, *changes]):
            if number >= 0:
                change(state, number)
            checkpointer.save(step, {**state, "count": step}).written.result(60)
            files.append(data_of(folder, step, rank))
            values.append(parts_of(state))
            dist.barrier(group)
        checkpointer.prune()
        kept = checkpointer.steps()
        for step in kept:
            checkpointer.verify(step)
            restored = checkpointer.restore(step)
            assert restored is not None
            assert parts_of(restored.state) == values[step]
            assert restored.state["count"] == step
            assert restored.state[f"of {rank}"].tolist() == [rank] * 3000
    return files, values, kept


def restore(folder: str, count: int, step: int) -> Any:
    """Restore a step into DTensors of so many ranks, by fastio and by torch; returns the values of both."""
    mesh = mesh_of(count)
    if mesh is None:
        return None
    group = dist.group.WORLD if count == dist.get_world_size() else mesh.get_group()
    mine, theirs = state_of(mesh, [99] * PARTS), state_of(mesh, [98] * PARTS)
    into = {name: value for name, value in mine.items() if name.startswith("part")}
    with fastio.Checkpointer(folder, process_group=group, read_only=True) as checkpointer:
        checkpointer.restore(step, into=into)
    part = {name: value for name, value in theirs.items() if name.startswith("part")}
    dcp.load(part, storage_reader=dcp.FileSystemReader(f"{folder}/step-{step:010d}"), process_group=group)
    return parts_of(into), parts_of(part)


def fail_once(folder: str, count: int, how: str) -> Any:
    """Save four steps; the second fails on rank 1, or rank 1 cannot link; returns errors, steps, and files."""
    mesh = mesh_of(count)
    if mesh is None:
        return None
    rank, link = dist.get_rank(), os.link
    state = state_of(mesh, list(range(PARTS)))

    def refuse(*_: Any) -> None:
        raise PermissionError(1, "this file system has no hard links")

    def save(step: int, state: dict[str, Any]) -> str:
        return step_fault_tasks.told(lambda: checkpointer.save(step, state).written.result(60))[0]

    errors, files = [], []
    with fastio.Checkpointer(folder, process_group=mesh.get_group(), incremental=True, keep=None) as checkpointer:
        for step in range(4):
            change(state, 0)
            if rank == 1 and step == 1 and how == "links":
                os.link = refuse
            saved: Any = dict(state)
            if rank == 1 and step == 1 and how == "capture":
                saved["refused"] = lambda: None
            with step_fault_tasks.failing(rank == 1 and step == 1 and how == "disk", 1 << 13):
                errors.append(save(step, saved))
            os.link = link
            files.append(len(data_of(folder, step, rank)))
            dist.barrier(mesh.get_group())
        for step in checkpointer.steps():
            checkpointer.verify(step)
        restored = checkpointer.restore()
        assert restored is not None
        return errors, checkpointer.steps(), files, parts_of(restored.state) == parts_of(state)
