"""Runs in each of several ranks: steps of one Checkpointer for all of them, beside DCP's asynchronous saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.device_mesh import init_device_mesh

from fastio.checkpoint import Checkpointer
from fastio.results import record
from fastio_bench.checkpoint.rank_group import agreed, joined, largest, led, sums
from fastio_bench.checkpoint.savers import ByCheckpointer, ByCopy, ByDCP, Saver
from fastio_bench.checkpoint.state import Shape, ShardedState
from fastio_bench.checkpoint.works import (
    BLOCKED_OF,
    COPY,
    DCP,
    DCP_CACHED,
    FASTIO,
    OF_RANKS,
    RANK_COUNTS,
    RESHARD,
    STEP_OF,
    Job,
)
from fastio_bench.harness import page_cache, warmup
from fastio_bench.harness.fresh_process import ChildError
from fastio_bench.harness.memory_reserve import Reserve
from fastio_bench.harness.rounds import Measured, Sample, SystemClock
from fastio_bench.machine import disk_limit
from fastio_bench.machine.disk_read import PlainRead
from fastio_bench.peers import catalogue
from fastio_bench.workloads import objects

_LEARNING = 6  # rounds
_PARTS = max(RANK_COUNTS)  # of the state: as many ranks save the step that fewer restore


def save(job: Job) -> Iterator[Sample]:
    """Each tool's saves by all ranks, after a first one; fastio's alternate with plain copies. All ranks yield them.

    The most ranks also leave a step, which other ranks restore.
    """
    with joined(job):
        state, folder = _state(job), Path(job.folder)
        (nbytes,) = sums(state.nbytes)

        def sample(work: str, tool: str, took: Measured) -> Sample:
            return Sample(
                work, Shape(job.depth, job.width).name, tool, 0, int(nbytes), took.seconds, took.cpu_seconds, None,
                took.way,
            )  # fmt: skip

        with Reserve(state.nbytes) as reserve:
            for tool in (FASTIO, DCP_CACHED):
                copy = ByCopy(state) if tool == FASTIO else None
                with closing(_saver(tool, state, folder / "saving", job.world)) as saver:
                    _timed(saver, reserve)
                    for _ in range(job.saves):
                        if copy is not None:
                            yield sample(BLOCKED_OF[job.world], COPY, _timed(copy, reserve)[0])
                        blocked, durable = _timed(saver, reserve)
                        yield sample(BLOCKED_OF[job.world], tool, blocked)
                        yield sample(STEP_OF[job.world], tool, durable)
                    led(saver.clear)
        if job.world == _PARTS:
            with Checkpointer(folder / OF_RANKS, asynchronous=False) as checkpointer:
                checkpointer.save(0, state.tree())


def restore(job: Job) -> Iterator[Sample]:
    """Restore the step of more ranks, by DCP and by fastio, the files not in the page cache; beside the disk's limit.

    fastio restores some times more before, which do not count: its dictionaries learn.
    """
    with joined(job):
        state, path = _state(job), Path(job.folder) / OF_RANKS
        expected = objects.fingerprint(state.tensors())
        plain = PlainRead(_own_files(path, job))
        calls = {DCP: _by_dcp, disk_limit.TOOL: lambda _state, _path: plain.run(), FASTIO: _by_checkpointer}
        for number in range(-_LEARNING, job.saves):
            for tool in (FASTIO,) if number < 0 else calls:
                for tensor in state.memory:
                    tensor.zero_()
                led(lambda: page_cache.drop(path))
                agreed(lambda: page_cache.check(path, "cold"))
                took = _together(lambda tool=tool: calls[tool](state, path))  # type: ignore[misc]
                is_wrong = tool != disk_limit.TOOL and objects.fingerprint(state.tensors()) != expected
                nbytes, wrong = sums(state.nbytes, is_wrong)
                if wrong:  # on any rank: all must take the same branch
                    raise ChildError(f"{tool} restored something else than was saved")
                own = Shape(job.depth, job.width).name, tool, 0, int(nbytes)
                if number >= 0:
                    yield Sample(RESHARD, *own, took.seconds, took.cpu_seconds, way=took.way)


def _own_files(path: Path, job: Job) -> list[str]:
    """The files of a step of more ranks that hold this rank's part."""
    files = sorted(map(str, path.glob("step-*/*.distcp")), key=lambda name: int(Path(name).name.split("_")[2]))
    own = len(files) // job.world
    return files[job.rank * own : (job.rank + 1) * own]


def _state(job: Job) -> ShardedState:
    return ShardedState(Shape(job.depth, job.width), init_device_mesh("cpu", (job.world,)), _PARTS)


def _saver(tool: str, state: ShardedState, folder: Path, ranks: int) -> Saver:
    return ByCheckpointer(state, folder) if tool == FASTIO else ByDCP(state, folder, cached=True, ranks=ranks)


def _timed(saver: Saver, reserve: Reserve) -> tuple[Measured, Measured]:
    """Time one save: until the training of the slowest rank may go on, and in all."""
    led(saver.clear)
    clock = SystemClock()
    with warmup.ready(reserve):
        dist.barrier()
        cpu, wall = clock.cpu(), clock.wall()
        saver.save()
        blocked, blocked_cpu = clock.wall() - wall, clock.cpu() - cpu
        way = saver.wait()
        dist.barrier()
        wall, cpu = clock.wall() - wall, clock.cpu() - cpu
    blocked, wall = largest(blocked, wall)
    blocked_cpu, cpu = sums(blocked_cpu, cpu)
    return Measured(blocked, blocked_cpu), Measured(wall, cpu, way=way)


def _together(work: Callable[[], str]) -> Measured:
    """Time what all ranks do at once, until the last one has done it."""
    clock = SystemClock()
    dist.barrier()
    cpu, wall = clock.cpu(), clock.wall()
    way = work()
    dist.barrier()
    wall, cpu = clock.wall() - wall, clock.cpu() - cpu
    (cpu,) = sums(cpu)
    return Measured(wall, cpu, way=way)


def _by_checkpointer(state: ShardedState, path: Path) -> str:
    with record() as transfers, Checkpointer(path, read_only=True) as checkpointer:
        checkpointer.restore(into=state.tree())
    return catalogue.way(transfers[-1])


def _by_dcp(state: ShardedState, path: Path) -> str:
    (step,) = path.glob("step-*")
    load(state.dicts(), storage_reader=FileSystemReader(step))
    return ""
