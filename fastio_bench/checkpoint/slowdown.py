"""Runs in a fresh process: training steps while nothing is written, and while a step is written in the background."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import torch
from torch import nn

from fastio_bench.checkpoint.savers import make
from fastio_bench.checkpoint.state import Shape, TrainingState
from fastio_bench.checkpoint.works import ALONE, SLOWED, Job
from fastio_bench.harness.rounds import Sample, SystemClock

_LAYERS, _WIDTH, _BATCH = 4, 512, 256  # a step of 10 to 20 ms on two cores, which uses all of them
_ALONE_SECONDS = 1.0


class _Training:
    """A small network that is trained, beside the state that is saved."""

    def __init__(self) -> None:
        self._model = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        self._batch, self._wanted = torch.randn(2, _BATCH, _WIDTH)  # the loss stays large: denormals would be slow
        self.nbytes = sum(parameter.nbytes for parameter in self._model.parameters())
        self.run(lambda: True)

    def run(self, is_over: Callable[[], bool]) -> tuple[float, float]:
        """Train until it is over, one step at least; return the seconds of a step, and its CPU seconds."""
        clock, count = SystemClock(), 0
        cpu, wall = clock.cpu(), clock.wall()
        while count == 0 or not is_over():
            self._optimizer.zero_grad()
            (self._model(self._batch) - self._wanted).square().mean().backward()
            self._optimizer.step()
            count += 1
        return (clock.wall() - wall) / count, (clock.cpu() - cpu) / count


def run(job: Job) -> Iterator[Sample]:
    """Steps alone, and during each of one tool's saves after a first one."""
    shape = Shape(job.depth, job.width)
    state = TrainingState(shape)
    training = _Training()
    with closing(make(job.tool, state, Path(job.folder) / "saving")) as saver:
        for number in range(job.saves + 1):
            saver.clear()
            end = time.perf_counter() + _ALONE_SECONDS
            alone = training.run(lambda end=end: time.perf_counter() > end)  # type: ignore[misc]
            saver.save()
            during = training.run(saver.is_written)
            saver.wait()
            if number:
                yield Sample(SLOWED, shape.name, ALONE, 0, training.nbytes, *alone)
                yield Sample(SLOWED, shape.name, job.tool, 0, training.nbytes, *during)
