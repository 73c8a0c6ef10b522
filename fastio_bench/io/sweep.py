"""Runs the sweep of ``fastio-bench io``: every tool at every size (Fastensor, tables 2 to 6)."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fastio_bench.harness import room
from fastio_bench.harness.memory_reserve import Reserve
from fastio_bench.harness.round_budget import RoundBudget
from fastio_bench.harness.rounds import Contestant, Failure, Sample, Task, describe, interleave
from fastio_bench.harness.time_budget import TimeBudget
from fastio_bench.io import namespaces
from fastio_bench.machine import disk_limit
from fastio_bench.peers.contestants import Contestants, remove
from fastio_bench.peers.peer import Peer
from fastio_bench.workloads.objects import MIB, Workload, fingerprint, one_tensor, place

BATCHES = (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)  # the largest first, as in the paper's tables
QUICK_BATCHES = (64, 4, 1)
DURABLE, CACHED, COLD, WARM = "durable write", "write", "cold read", "warm read"
WORKS = (DURABLE, CACHED, COLD, WARM)
MOST_DISK = 10 << 30
_LEAST_LIMITED = 49 * MIB  # bytes; below, fio's clock, which counts milliseconds, is too coarse


def files(tools: Sequence[Peer]) -> int:
    """The most files of one size on the disk at once: those to load, and the one being saved."""
    return len({tool.owner for tool in tools if tool.load is not None}) + 1


def fitting(batches: Sequence[int], folder: Path, count: int = 8) -> tuple[list[Workload], str]:
    """The papers' sizes that fit here, and the remark on those that were left out.

    A size needs ``count`` files: 10 GiB of disk at most.
    """
    most = min(room.most(folder, count), MOST_DISK // count)
    everything = [one_tensor(batch) for batch in batches]
    kept = [workload for workload in everything if workload.nbytes <= most]
    cut = [f"{workload.nbytes / MIB:,.10g}" for workload in everything if workload.nbytes > most]
    return kept, room.remark([f"{', '.join(cut)} MiB"] if cut else [])


@dataclass
class Sweep:
    """Tools over sizes. Loads run in fresh processes. ``tell(what, weight)`` is called for the progress.

    Each size gets ``rounds`` rounds, or as many as ``budget`` allows, and fewer if they take longer than planned. If
    ``limited``, the disk's limit takes part from 49 MiB on. ``volumes`` on namespaces take part in durable writes and
    cold reads.
    """

    folder: Path
    rounds: int
    workloads: Sequence[Workload]
    tools: Sequence[Peer]
    device: str = "cpu"
    budget: RoundBudget | None = None
    limited: bool = True
    volumes: Sequence[str] = ()
    tell: Callable[[str, float], None] = field(default=lambda what, weight: None)

    def weights(self) -> list[float]:
        """The weight of every call to come."""
        planned = self._planned()
        return [
            self._weight(workload) for workload in self.workloads for _ in range(planned[workload.name] * len(WORKS))
        ]

    def run(self) -> Iterator[Sample | Failure]:
        """Every outcome, as soon as it is known."""
        for workload in self.workloads:
            start, planned = time.monotonic(), self._planned()
            rounds = planned[workload.name]
            if rounds:
                left = sum(self._weight(own) * planned.get(own.name, 0) for own in self.workloads)
                share = self._weight(workload) * rounds / left if left else 1.0
                seconds = math.inf if self.budget is None else share * self.budget.left
                finished = dict.fromkeys(WORKS, 0)
                for outcome in self._size(workload, rounds, TimeBudget(seconds)):
                    if isinstance(outcome, Sample):
                        finished[outcome.work] = max(finished[outcome.work], outcome.round + 1)
                    yield outcome
                rounds = min((count for count in finished.values() if count), default=rounds)
            if self.budget is not None:
                self.budget.done(workload.name, rounds, time.monotonic() - start)

    def _planned(self) -> dict[str, int]:
        return {w.name: self.rounds for w in self.workloads} if self.budget is None else self.budget.plan()

    def _weight(self, workload: Workload) -> float:
        return (
            2.0 + workload.nbytes / 1e9 if self.budget is None else self.budget.costs[workload.name].round / len(WORKS)
        )

    def _size(self, workload: Workload, rounds: int, budget: TimeBudget) -> Iterator[Sample | Failure]:
        self.tell(f"{workload.label}: making it", 0)
        thing = place(workload.make(), self.device)
        with Reserve(2 * workload.nbytes) as reserve:
            make = Contestants(self.folder, workload, thing, fingerprint(thing), reserve, self.device)
            try:
                for done, work in enumerate(WORKS):
                    budget.begin(1 / (len(WORKS) - done))
                    yield from self._compare(workload, work, rounds, make, budget)
            finally:
                namespaces.clear(self.volumes)
        for path in self.folder.iterdir():
            remove(path)

    def _compare(
        self, workload: Workload, work: str, rounds: int, make: Contestants, budget: TimeBudget
    ) -> Iterator[Sample | Failure]:
        contestants: list[Contestant] = []
        for name, maker in self._makers(workload, work, make).items():
            try:
                contestants.append(maker())
            except Exception as error:  # its file could not be made: that is a result too
                yield Failure(work, workload.name, name, 0, describe(error))
        if not contestants:
            return
        what, weight = f"{workload.label}: {work}", self._weight(workload) / len(contestants)
        self.tell(what, 0)
        done = 0
        for outcome in interleave(
            Task(work, workload.name, workload.nbytes), contestants, rounds, another=budget.another
        ):
            done += 1
            self.tell(what, weight)
            yield outcome
        self.tell(what, weight * (rounds * len(contestants) - done))

    def _makers(self, workload: Workload, work: str, make: Contestants) -> dict[str, Callable[[], Contestant]]:
        operation = "save" if work in (DURABLE, CACHED) else "load"
        able = [tool for tool in self.tools if not tool.unable(operation, workload.kind)]
        makers: dict[str, Callable[[], Contestant]] = {}
        for tool in able:
            if operation == "save":
                makers[tool.label] = functools.partial(make.saver, tool, work == DURABLE)
            else:
                makers[tool.label] = functools.partial(make.loader, tool, "cold" if work == COLD else "warm")
        for volume in self.volumes if work in (DURABLE, COLD) else ():
            on_volume = namespaces.saver if work == DURABLE else namespaces.loader
            makers[volume] = functools.partial(on_volume, volume, make.thing, self.device)
        if able and self.limited and workload.nbytes >= _LEAST_LIMITED and work in (DURABLE, COLD):
            makers[disk_limit.TOOL] = functools.partial(self._limit, able, work, make)
        return makers

    @staticmethod
    def _limit(able: Sequence[Peer], work: str, make: Contestants) -> Contestant:
        """The disk limit's contestant. It reads the file that most of fastio's tools load."""
        if work == DURABLE:
            return make.write_limit(disk_limit.find())
        owners = [tool.owner for tool in able]
        return make.read_limit(disk_limit.find(), make.saved(max(able, key=lambda tool: owners.count(tool.owner))))
