"""The process group of a benchmark's ranks, and what they do together."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from fastio_bench.checkpoint.works import Job
from fastio_bench.harness.fresh_process import ChildError

_TIMEOUT = datetime.timedelta(seconds=120)  # the time that one rank waits for the others


@contextlib.contextmanager
def joined(job: Job) -> Iterator[None]:
    """Join the process group of a job's ranks, which share the processors out, until the end of the context."""
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(max(1, cores // job.world))
    store = dist.FileStore(os.path.join(job.folder, "rendezvous"), job.world)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=job.rank, world_size=job.world, timeout=_TIMEOUT)
    try:
        yield
    finally:
        dist.destroy_process_group()


def led(action: Callable[[], object]) -> None:
    """Run on the first rank what one rank does for all."""
    dist.barrier()
    agreed(action if dist.get_rank() == 0 else lambda: None)


def agreed(action: Callable[[], object]) -> None:
    """Run the call on all ranks.

    If one fails, all raise: a rank alone would wait for the others until the timeout.
    """
    error: Exception | None = None
    try:
        action()
    except Exception as raised:  # any error: the other ranks must learn of it
        error = raised
    failed = torch.tensor([error is not None], dtype=torch.int)
    dist.all_reduce(failed)
    if error is not None:
        raise error
    if failed.item():
        raise ChildError("another rank could not go on")


def sums(*values: float) -> list[float]:
    """The sums of all ranks' values."""
    return _reduced(values, dist.ReduceOp.SUM)


def largest(*values: float) -> list[float]:
    """The largest ones of all ranks' values."""
    return _reduced(values, dist.ReduceOp.MAX)


def _reduced(values: tuple[float, ...], op: dist.ReduceOp.RedOpType) -> list[float]:
    found = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(found, op=op)
    return list(found.tolist())
