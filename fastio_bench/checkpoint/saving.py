"""Runs in a fresh process: saves, each timed until training may go on and until it is durable, and peak memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from fastio_bench.checkpoint.savers import ByCheckpointer, ByCopy, Saver, make
from fastio_bench.checkpoint.state import Shape, TrainingState
from fastio_bench.checkpoint.works import (
    BLOCKED,
    COPY,
    DURABLE,
    FASTIO,
    FULL,
    INCREMENTAL,
    SHARE,
    Job,
    works_of,
)
from fastio_bench.harness import warmup
from fastio_bench.harness.memory_reserve import Reserve
from fastio_bench.harness.rounds import Measured, Sample, SystemClock
from fastio_bench.harness.timing import Peak
from fastio_bench.workloads import objects

_LEARNING = 6  # the most rounds in which fastio's dictionaries try their tools


class Timing:
    """Times savers of one state. Peaks are above the memory held at construction."""

    def __init__(self, shape: Shape, nbytes: int, reserve: Reserve) -> None:
        self._workload, self._nbytes, self._reserve = shape.name, nbytes, reserve
        reserve.release()
        self._base = Peak()
        self._highest: int | None = None

    def save(self, saver: Saver) -> tuple[Measured, Measured]:
        """Time one save: until training may go on, and in all. The latter has the highest peak so far."""
        saver.clear()
        clock = SystemClock()
        with warmup.ready(self._reserve):
            Peak()  # resets the high-water mark: the reserve does not belong to the saver
            cpu, wall = clock.cpu(), clock.wall()
            saver.save()
            blocked = Measured(clock.wall() - wall, clock.cpu() - cpu)
            way = saver.wait()
            wall, cpu = clock.wall() - wall, clock.cpu() - cpu
            peak = self._base.beyond(0)
        self._highest = peak if self._highest is None or peak is None else max(self._highest, peak)
        return blocked, Measured(wall, cpu, self._highest, way)

    def sample(self, work: str, tool: str, took: Measured) -> Sample:
        """The measured save as a sample."""
        return Sample(
            work, self._workload, tool, 0, self._nbytes, took.seconds, took.cpu_seconds, took.extra_bytes, took.way
        )


def learn(job: Job) -> Iterator[Sample]:
    """Let fastio's dictionaries learn. Yields nothing."""
    shape = Shape(job.depth, job.width)
    state = TrainingState(shape)
    count = len(state.tensors())
    workload = objects.Workload(shape.name, "", "dict", state.nbytes, count, True, state.tensors)
    with Reserve(2 * state.nbytes) as reserve:
        warmup.warm_up(workload, workload.make(), Path(job.folder) / "learning.pt", reserve, _LEARNING)
    yield from ()


def save(job: Job) -> Iterator[Sample]:
    """One tool's saves, after a first one. fastio's alternate with plain copies."""
    shape = Shape(job.depth, job.width)
    state = TrainingState(shape)
    copy = ByCopy(state) if job.tool == FASTIO else None
    saver = make(job.tool, state, Path(job.folder) / "saving")
    with Reserve(state.nbytes) as reserve, closing(saver):
        timing = Timing(shape, state.nbytes, reserve)
        timing.save(saver)
        for _ in range(job.saves):
            if copy is not None:
                yield timing.sample(BLOCKED, COPY, timing.save(copy)[0])
            took = dict(zip((BLOCKED, DURABLE), timing.save(saver), strict=True))
            for work in works_of(job.tool):
                yield timing.sample(work, job.tool, took[work])


def save_changes(job: Job) -> Iterator[Sample]:
    """fastio's full and incremental saves of a state of which a tenth changed."""
    shape = Shape(job.depth, job.width)
    state = TrainingState(shape)
    folder = Path(job.folder)
    savers = {
        FULL: ByCheckpointer(state, folder / "full"),
        FASTIO: ByCheckpointer(state, folder / "incremental", keep=1, incremental=True),
    }
    with Reserve(state.nbytes) as reserve, ExitStack() as stack:
        for saver in savers.values():
            stack.enter_context(closing(saver))
        timing = Timing(shape, state.nbytes, reserve)
        for saver in savers.values():
            timing.save(saver)
        for _ in range(job.saves):
            for tool, saver in savers.items():
                state.change(SHARE)
                took = timing.save(saver)[1]
                # A peak here would be that of both savers.
                yield timing.sample(INCREMENTAL, tool, replace(took, extra_bytes=None))
