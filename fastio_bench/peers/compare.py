"""Runs the comparison of ``fastio-bench peers``: every work on every workload, in interleaved rounds."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fastio_bench.harness import warmup
from fastio_bench.harness.memory_reserve import Reserve
from fastio_bench.harness.rounds import Contestant, Failure, Sample, Task, describe, interleave
from fastio_bench.harness.time_budget import TimeBudget
from fastio_bench.machine import disk_limit, memory_limit
from fastio_bench.peers.contestants import Contestants, remove
from fastio_bench.peers.peer import Peer
from fastio_bench.workloads.objects import Object, Workload, fingerprint

DURABLE, CACHED, COLD, WARM = "durable save", "save", "cold load", "warm load"
DURABLE_MEMORY, CACHED_MEMORY = "durable save, fresh process", "save, fresh process"
WORKS = (DURABLE, CACHED, COLD, WARM)
MEMORY = {DURABLE: DURABLE_MEMORY, CACHED: CACHED_MEMORY}
QUICK_PEERS = ("torch", "torch, no CRC", "fastio", "fastio, unverified")
LIMITED = (DURABLE, COLD)  # works that the disk bounds


_TO_LEARN = 1 / 3  # of the time limit, at most, but one round in any case


@dataclass(frozen=True, slots=True)
class Step:
    """One comparison: the peers that can do this work on this workload, and why the others cannot.

    ``limits`` are the limits of disk or memory that take part, by name.
    """

    workload: Workload
    work: str
    rounds: int
    able: tuple[Peer, ...]
    refused: tuple[Failure, ...]
    limits: tuple[str, ...] = ()

    @property
    def weight(self) -> float:
        """A rough estimate of one call's seconds, with its preparation and clean-up."""
        gigabytes = self.workload.nbytes / 1e9
        if self.work in (COLD, WARM):
            return 2.0 + 1.5 * gigabytes
        return 0.05 + 1.2 * gigabytes if self.work in WORKS else 2.0 + 4.0 * gigabytes

    @property
    def calls(self) -> int:
        """The number of samples, if none fails."""
        return self.rounds * (len(self.able) + len(self.limits))


@dataclass
class Comparison:
    """The settings of a comparison, and its run. ``tell(what, weight)`` is called for the progress.

    Before it, fastio saves and loads large objects at most ``learning`` times (small ones four times as often), so that
    its dictionaries have learned. With ``memory``, large objects are also saved once in a fresh process, for the peak
    of memory, which a long-running process would hide. With ``ring``, our ring's limit is measured once beside fio's.
    ``lean``: see :class:`Contestants`. Later rounds, of learning too, are left out if all would take
    more than ``seconds``.
    """

    folder: Path
    rounds: int
    workloads: Sequence[Workload]
    peers: Sequence[Peer]
    works: Sequence[str] = WORKS
    learning: int = warmup.MOST_ROUNDS
    memory: bool = True
    ring: bool = True
    lean: bool = False
    seconds: float = math.inf
    tell: Callable[[str, float], None] = field(default=lambda what, weight: None)
    steps: list[Step] = field(init=False)

    def __post_init__(self) -> None:
        self.steps = [self._step(w, work, self.rounds) for w in self.workloads for work in self.works]
        for workload in self.workloads:
            if workload.large and self.memory:
                self.steps += [self._step(workload, MEMORY[work], 1) for work in self.works if work in MEMORY]
        self.steps.sort(key=lambda step: self.workloads.index(step.workload))

    def weights(self) -> list[float]:
        """The weight of every call to come."""
        learning = [self._learning_weight(workload) for workload in self.workloads if self._learns]
        return learning + [step.weight for step in self.steps for _ in range(step.calls)]

    def run(self) -> Iterator[Sample | Failure]:
        """Every outcome, as soon as it is known."""
        budget = TimeBudget(self.seconds)
        for workload in self.workloads:
            self.tell(f"{workload.label}: making it", 0)
            thing = workload.make()
            with Reserve(2 * workload.nbytes) as reserve:
                if self._learns:
                    budget.begin(_TO_LEARN)
                    self._learn(workload, thing, reserve, budget)
                contestants = Contestants(self.folder, workload, thing, fingerprint(thing), reserve, lean=self.lean)
                for place, step in enumerate(self.steps):
                    if step.workload is workload:
                        left = sum(other.weight * other.calls for other in self.steps[place:])
                        budget.begin(step.weight * step.calls / left if left else 1)
                        yield from self._compare(step, contestants, budget)
            for path in self.folder.iterdir():
                remove(path)

    @property
    def _learns(self) -> bool:
        return any(peer.package == "fastio" for peer in self.peers)

    def _learn(self, workload: Workload, thing: Object, reserve: Reserve, budget: TimeBudget) -> None:
        what = f"{workload.label}: fastio learns"
        rounds = self._learning_rounds(workload)
        weight = self._learning_weight(workload) / rounds
        self.tell(what, 0)
        path = self.folder / "learning"
        warmup.warm_up(workload, thing, path, reserve, rounds, lambda: self.tell(what, weight), another=budget.another)

    def _learning_rounds(self, workload: Workload) -> int:
        return self.learning * (1 if workload.large else warmup.SMALL)

    def _learning_weight(self, workload: Workload) -> float:
        return self._learning_rounds(workload) * (0.1 + warmup.SECONDS_PER_GB * workload.nbytes / 1e9)

    def _limits(self, workload: Workload, work: str) -> tuple[str, ...]:
        """The names of the limits that take part. Our ring's does once, beside fio's, at the first large workload."""
        if workload.large and work == WARM:
            return (memory_limit.TOOL,)
        if not workload.large or work not in LIMITED:
            return ()
        first = next(other for other in self.workloads if other.large)
        return (
            (disk_limit.TOOL, disk_limit.RING)
            if self.ring and workload is first and disk_limit.fio()
            else (disk_limit.TOOL,)
        )

    def _step(self, workload: Workload, work: str, rounds: int) -> Step:
        operation = "load" if work in (COLD, WARM) else "save"
        able, refused = [], []
        for peer in self.peers:
            if not peer.takes_part(operation):
                continue
            problem = peer.unable(operation, workload.kind)
            if problem:
                refused.append(Failure(work, workload.name, peer.name, 0, problem, refused=True))
            else:
                able.append(peer)
        return Step(workload, work, rounds, tuple(able), tuple(refused), self._limits(workload, work) if able else ())

    def _compare(self, step: Step, make: Contestants, budget: TimeBudget) -> Iterator[Sample | Failure]:
        yield from step.refused
        what = f"{step.workload.label}: {step.work}"
        self.tell(what, 0)
        contestants: list[Contestant] = []
        makers = {peer.name: functools.partial(self._contestant, step.work, peer, make) for peer in step.able}
        makers |= {name: functools.partial(self._limit, step, name, make) for name in step.limits}
        for name, maker in makers.items():
            try:
                contestants.append(maker())
            except Exception as error:  # its file could not be made: that is a result too
                yield Failure(step.work, step.workload.name, name, 0, describe(error))
        task = Task(step.work, step.workload.name, step.workload.nbytes)
        done = 0
        for outcome in interleave(task, contestants, step.rounds, another=budget.another):
            done += 1
            self.tell(what, step.weight)
            yield outcome
        self.tell(what, step.weight * (step.calls - done))

    @staticmethod
    def _limit(step: Step, name: str, make: Contestants) -> Contestant:
        """The contestant of a limit. It reads the file that fastio loads, or else the first peer's."""
        if step.work == DURABLE:
            return make.write_limit(_disk(name), name)
        peer = next((peer for peer in step.able if peer.owner == "fastio"), step.able[0])
        if step.work == WARM:
            return make.memory_limit(make.saved(peer))
        return make.read_limit(_disk(name), make.saved(peer), name)

    @staticmethod
    def _contestant(work: str, peer: Peer, make: Contestants) -> Contestant:
        if work in (COLD, WARM):
            return make.loader(peer, "cold" if work == COLD else "warm")
        if work in (DURABLE_MEMORY, CACHED_MEMORY):
            return make.fresh_saver(peer, durable=work == DURABLE_MEMORY)
        return make.saver(peer, durable=work == DURABLE)


def _disk(name: str) -> disk_limit.Limit:
    return disk_limit.find() if name == disk_limit.TOOL else disk_limit.RingLimit()
