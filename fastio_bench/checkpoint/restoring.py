"""Runs in fresh processes: one writes the files, each of the others restores them once, cold, into a live model.

A long-running process would have free memory in its heap, which a resumed program does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from fastio.checkpoint import Checkpointer
from fastio.results import record
from fastio_bench.checkpoint.state import Shape, TrainingState
from fastio_bench.checkpoint.works import FASTIO, MAPPED, OF_FASTIO, OF_TORCH, RESTORE, Job
from fastio_bench.harness import page_cache
from fastio_bench.harness.fresh_process import ChildError
from fastio_bench.harness.memory_reserve import Reserve
from fastio_bench.harness.rounds import Sample
from fastio_bench.harness.timing import timed
from fastio_bench.peers import catalogue, libraries
from fastio_bench.workloads.objects import touch


def prepare(job: Job) -> Iterator[Sample]:
    """Write the files to restore, and the fingerprint of their content. Yields nothing."""
    state = TrainingState(Shape(job.depth, job.width))
    with Checkpointer(path_of(job, FASTIO), asynchronous=False) as checkpointer:
        checkpointer.save(0, state.tree())
    libraries.torch_save(state.dicts(), str(path_of(job, job.tool)), durable=True)
    _fingerprint(job).write_text(str(state.fingerprint()))
    yield from ()


def restore(job: Job) -> Iterator[Sample]:
    """Restore once. Raises ChildError if the state differs from the saved one."""
    shape, path = Shape(job.depth, job.width), path_of(job, job.tool)
    state = TrainingState(shape)
    state.erase()
    page_cache.drop(path)
    bring = _by_checkpointer(state, path) if job.tool == FASTIO else _by_torch(state, path, job.tool == MAPPED)
    with Reserve(2 * state.nbytes):
        pass
    page_cache.check(path, "cold")
    _, took = timed(lambda: (None, bring()), held=0)
    if state.fingerprint() != int(_fingerprint(job).read_text()):
        raise ChildError(f"{job.tool} restored something else than was saved")
    yield Sample(
        RESTORE, shape.name, job.tool, 0, state.nbytes, took.seconds, took.cpu_seconds, took.extra_bytes, took.way
    )


def path_of(job: Job, tool: str) -> Path:
    """What the tool restores: a folder of the Checkpointer, or torch's file."""
    return Path(job.folder) / (OF_FASTIO if tool == FASTIO else OF_TORCH)


def _fingerprint(job: Job) -> Path:
    return Path(job.folder) / "of-both"


def _by_checkpointer(state: TrainingState, path: Path) -> Callable[[], str]:
    def bring() -> str:
        with record() as transfers, Checkpointer(path, read_only=True) as checkpointer:
            checkpointer.restore(into=state.tree())
        return catalogue.way(transfers[-1])

    return bring


def _by_torch(state: TrainingState, path: Path, mapped: bool) -> Callable[[], str]:
    def bring() -> str:
        saved = torch.load(path, mmap=mapped)
        state.model.load_state_dict(saved["model"])
        state.optimizer.load_state_dict(saved["optimizer"])
        if mapped:  # the optimizer keeps the moments that it gets, so they stay mapped
            touch(state.tensors())
            return libraries.MAPPED
        return ""

    return bring
