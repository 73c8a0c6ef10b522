"""Compares ways to train: a fresh process each time, interleaved, with comparison of gradients."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fastio_bench.harness.fresh_process import ChildError
from fastio_bench.harness.rounds import Failure, describe
from fastio_bench.offload import training_child
from fastio_bench.offload.settings import LEARNING
from fastio_bench.offload.training_job import WARM_UP, Job, Run
from fastio_bench.offload.training_ways import PLAIN

WORK = "training step"
_START = 3.0  # the weight of a process's start, in steps
_LEARNING_STEPS = 6


@dataclass(frozen=True)
class Record:
    """One run of one way. ``exact_memory``: the run for the peak of memory, whose times are not valid.

    ``same_gradients`` and ``same_losses``: whether they are bitwise equal to plain training's. If gradients are not,
    ``difference`` is the largest in any tensor, relative to that tensor's largest gradient.
    """

    way: str
    batch: int
    round: int
    exact_memory: bool
    run: Run
    same_gradients: bool
    same_losses: bool
    difference: float


@dataclass
class Comparison:
    """Runs the job plainly and by ``ways``, each with its settings.

    ``tell(what, weight)`` is called for the progress.
    """

    folder: Path
    job: Job
    ways: Mapping[str, dict[str, Any]]
    rounds: int
    tell: Callable[[str, float], None] = field(default=lambda what, weight: None)
    _plain: Run | None = field(init=False, default=None)

    def weights(self) -> list[float]:
        """The weight of every process."""
        learning = [_START + 2 + WARM_UP + _LEARNING_STEPS for way in LEARNING if way in self.ways]
        return learning + [self._weight(exact) for _, _, exact in self._order()]

    def run(self) -> Iterator[Record | Failure]:
        """Every outcome, as soon as it is known. A way that failed takes no further part."""
        failed: set[str] = set()
        for way in LEARNING:
            if way in self.ways:
                try:
                    self._learn(way)
                except ChildError as error:
                    failed.add(way)
                    yield Failure(WORK, self._workload(), way, 0, describe(error))
        for number, way, exact in self._order():
            if way in failed:
                continue
            what = f"{way}, batch {self.job.batch}, {'memory' if exact else f'round {number + 1}'}"
            self.tell(what, 0)
            try:
                yield self._once(number, way, exact)
            except ChildError as error:
                failed.add(way)
                yield Failure(WORK, self._workload(), way, number, describe(error))
                if way == PLAIN and self._plain is None:
                    return  # nothing to compare with
            self.tell(what, self._weight(exact))

    def _workload(self) -> str:
        return f"{self.job.architecture}, batch {self.job.batch}"

    def _learn(self, way: str) -> None:
        """Let the dictionaries of this way try all tools, and keep them for the rounds."""
        what = f"{way}: its dictionaries learn"
        self.tell(what, 0)
        with self._files() as files:
            here = replace(self.job, way=way, settings=self.ways[way], steps=_LEARNING_STEPS, folder=files)
            training_child.train(here)
        self.tell(what, _START + 2 + WARM_UP + _LEARNING_STEPS)

    @contextmanager
    def _files(self) -> Iterator[str]:
        """A temporary folder for the tensors that a way moves."""
        files = self.folder / "files"
        files.mkdir()
        try:
            yield str(files)
        finally:
            shutil.rmtree(files)

    def _order(self) -> list[tuple[int, str, bool]]:
        ways = [PLAIN, *self.ways]
        timed = [(number, way, False) for number in range(self.rounds) for way in ways]
        return [*((0, way, True) for way in ways), *timed]

    def _weight(self, exact: bool) -> float:
        return _START + 2 + WARM_UP + (1 if exact else self.job.steps)

    def _once(self, number: int, way: str, exact: bool) -> Record:
        job = replace(self.job, way=way, settings=self.ways.get(way, {}))
        gradients = self.folder / f"{way}.pt"
        try:
            if exact:
                job = replace(job, steps=1, gradients=str(gradients))
            with self._files() as files:
                environment = training_child.EXACT_MEMORY if exact else None
                run = training_child.train(replace(job, folder=files), environment)
            plain = self._plain = self._plain or run
            same = run.gradients == plain.gradients
            common = min(len(run.losses), len(plain.losses))
            same_losses = (run.losses[:common], run.fixed_loss) == (plain.losses[:common], plain.fixed_loss)
            difference = largest_difference(self.folder / f"{PLAIN}.pt", gradients) if exact and not same else 0.0
        finally:
            if way != PLAIN:
                gradients.unlink(missing_ok=True)
        return Record(way, self.job.batch, number, exact, run, same, same_losses, difference)


def largest_difference(expected: Path, got: Path) -> float:
    """The largest difference of gradients in two files, relative to the tensor's largest expected value."""
    before: dict[str, torch.Tensor] = torch.load(expected, mmap=True)
    after: dict[str, torch.Tensor] = torch.load(got, mmap=True)
    largest = 0.0
    for name, tensor in before.items():
        difference = (after[name] - tensor).abs().max().item()
        if difference:
            largest = max(largest, difference / max(tensor.abs().max().item(), torch.finfo(tensor.dtype).tiny))
    return largest
