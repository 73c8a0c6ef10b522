"""Estimates the seconds of ``fastio-bench io`` at each size, from one round of its first tool at two sizes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fastio_bench.harness import fresh_process
from fastio_bench.harness.round_budget import Cost, through
from fastio_bench.io import sweep
from fastio_bench.peers.peer import Peer
from fastio_bench.workloads.objects import Workload, one_tensor

BATCHES = (1, 64)


def sizes(workloads: Sequence[Workload]) -> list[Workload]:
    """The two sizes to probe, a small and a larger one that fits here."""
    if not workloads:
        return []
    largest = max(workloads, key=lambda workload: workload.nbytes)
    found = [min(one_tensor(batch), largest, key=lambda workload: workload.nbytes) for batch in BATCHES]
    return list({size.name: size for size in found}.values())


def costs(folder: Path, tools: Sequence[Peer], device: str, workloads: Sequence[Workload]) -> dict[str, Cost]:
    """The cost of each size, in seconds.

    At each size the tensor is made once, every file to load is saved once, and a round calls every tool.
    """
    fresh_process.import_seconds()  # the first process reads torch from the disk, which would make the probe too slow
    points = [_probe(folder, tools[:1], device, workload) for workload in sizes(workloads)]
    if not points:
        return {}
    small, large = points[0], points[-1]
    making = through((small.nbytes, small.making), (large.nbytes, large.making))
    saving = through((small.nbytes, small.saving), (large.nbytes, large.saving))
    calls = through((small.nbytes, small.calls), (large.nbytes, large.calls))
    saved = sweep.files(tools) - 1  # the one being timed does not stay
    width = len(tools) + 0.5  # the limit takes part in half of the works, and never in a fresh process
    return {
        own.name: Cost(making.at(own.nbytes) + saved * saving.at(own.nbytes), width * calls.at(own.nbytes))
        for own in workloads
    }


@dataclass(frozen=True, slots=True)
class _Point:
    """Seconds of one tool's round at one size: making the tensor, saving the file that is loaded, and the calls."""

    nbytes: int
    making: float
    saving: float
    calls: float


def _probe(folder: Path, tools: Sequence[Peer], device: str, workload: Workload) -> _Point:
    watch = _Watch()
    for _ in sweep.Sweep(folder, 1, [workload], tools, device, limited=False, tell=watch.tell).run():
        pass
    return watch.point(workload.nbytes)


class _Watch:
    """Splits the seconds of a sweep of one size: making the tensor, calls, and the rest."""

    def __init__(self) -> None:
        self._calls = self._making = 0.0
        self._start = self._since = time.monotonic()

    def tell(self, what: str, weight: float) -> None:
        """The sweep's progress callback. A call has ended if ``weight`` is not 0; else the next step begins."""
        now = time.monotonic()
        if weight:
            self._calls += now - self._since
        elif not self._calls:
            self._making = now - self._start
        self._since = now

    def point(self, nbytes: int) -> _Point:
        """The seconds so far."""
        passed = time.monotonic() - self._start
        return _Point(nbytes, self._making, passed - self._making - self._calls, self._calls)
