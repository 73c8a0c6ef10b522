"""Runs ``fastio-bench contend``: saves, loads and training steps beside load processes, in interleaved rounds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from fastio_bench.contend.training import WAYS, Training
from fastio_bench.harness import page_cache, warmup
from fastio_bench.harness.memory_reserve import Reserve
from fastio_bench.harness.rounds import Contestant, Failure, Sample, Task, describe, interleave
from fastio_bench.machine.bandwidth_loads import BandwidthLoads, Traffic
from fastio_bench.peers import catalogue, compare
from fastio_bench.peers.contestants import Contestants
from fastio_bench.peers.peer import Peer
from fastio_bench.tools.live import fresh_dictionaries
from fastio_bench.workloads.objects import Object, Workload, fingerprint
from fastio_bench.workloads.training_models import Size

LEVELS = (0.0, 0.5, 0.7, 0.9)
WORKS = compare.WORKS
STEP = "training step"
TOOLS = ("torch", "fastio")
_ALONE = 0.25  # seconds for which the load processes are measured alone before each call
_CALL = 1.0  # a rough estimate of one call's seconds, with preparation and clean-up
_LEARNING = 6  # the most rounds in which fastio's dictionaries try their tools before


@dataclass(frozen=True, slots=True)
class Call:
    """One call of ``tool`` at ``work`` while load processes were to take the share ``level`` of the memory bandwidth.

    ``nbytes``: the bytes that it moved to or from files, or that a training step moved out of memory. ``alone`` is the
    traffic of the load processes shortly before it, ``beside`` that during it; None without load processes.
    """

    work: str
    tool: str
    level: float
    round: int
    nbytes: int
    seconds: float
    alone: Traffic | None
    beside: Traffic | None


@dataclass
class Contention:
    """What runs beside the load processes, and how often; ``bandwidth`` is the memory's, in bytes/s.

    Loads run in this process, so the workload should be one large tensor: its memory is new in each call. fastio learns
    into separate dictionaries, since its times under load do not hold for this machine otherwise. ``calls`` has every
    call, training's too. ``tell(what, weight)`` is called for the progress.
    """

    folder: Path
    rounds: int
    workload: Workload
    size: Size
    loads: BandwidthLoads
    bandwidth: float
    levels: Sequence[float] = LEVELS
    tell: Callable[[str, float], None] = field(default=lambda what, weight: None)
    calls: list[Call] = field(default_factory=list)

    def run(self) -> Iterator[Sample | Failure]:
        """Every outcome, as soon as it is known; of training only failures, since its steps move no file."""
        with fresh_dictionaries(self.folder):
            yield from self._saves_and_loads()
        yield from self._steps()

    def _saves_and_loads(self) -> Iterator[Sample | Failure]:
        self.tell(f"{self.workload.label}: fastio learns", 0)
        thing, nbytes = self.workload.make(), self.workload.nbytes
        with Reserve(2 * nbytes) as reserve:
            warmup.warm_up(self.workload, thing, self.folder / "learning", reserve, _LEARNING)
            make = Contestants(self.folder, self.workload, thing, fingerprint(thing), reserve)
            found = [catalogue.find(name) for name in TOOLS]
            for work in WORKS:
                if work in (compare.COLD, compare.WARM):
                    contestants = [self._loader(peer, work == compare.COLD, thing, reserve) for peer in found]
                else:
                    contestants = [make.saver(peer, durable=work == compare.DURABLE) for peer in found]
                yield from self._interleave(Task(work, self.workload.name, nbytes), contestants, lambda tool: nbytes)

    def _loader(self, peer: Peer, is_cold: bool, thing: Object, reserve: Reserve) -> Contestant:
        path, load, loaded = self.folder / f"of-{peer.name}", peer.loader(), list[Object]()
        if not path.exists():
            peer.saver()(thing, str(path), True)

        def prepare() -> None:
            reserve.hold()
            (page_cache.drop if is_cold else page_cache.warm)(path)
            reserve.release()

        def run() -> str:
            thing, way = load(str(path))
            loaded.append(thing)  # freeing its memory is not part of loading
            return way

        def finish() -> None:
            loaded.clear()
            reserve.hold()

        return Contestant(peer.label, run, prepare, finish)

    def _steps(self) -> Iterator[Failure]:
        task, trainings = Task(STEP, str(self.size), 0), dict[str, Training]()
        with ExitStack() as stack:
            for way in WAYS:
                self.tell(f"{STEP}: {way} warms up", 0)
                try:
                    trainings[way] = stack.enter_context(closing(Training(way, self.size, self.folder)))
                except Exception as error:  # it cannot train here: that is a result too
                    yield Failure(STEP, task.workload, way, 0, describe(error))
            contestants = [Contestant(way, training.step) for way, training in trainings.items()]
            for outcome in self._interleave(task, contestants, lambda way: trainings[way].moved):
                if isinstance(outcome, Failure):
                    yield outcome

    def _interleave(
        self, task: Task, contestants: Sequence[Contestant], nbytes: Callable[[str], int]
    ) -> Iterator[Sample | Failure]:
        """Run every contestant at every level once a round. ``nbytes`` returns the bytes of a tool's latest call."""
        traffic: list[tuple[Traffic | None, Traffic | None]] = []  # of the latest call
        both = {f"{c.tool} at {level:.0%}": (c, level) for level in self.levels for c in contestants}
        contended = [self._contended(label, *pair, traffic) for label, pair in both.items()]
        self.tell(task.work, 0)
        for outcome in interleave(task, contended, self.rounds):
            self.tell(task.work, _CALL)
            if isinstance(outcome, Sample):
                tool, level = both[outcome.tool][0].tool, both[outcome.tool][1]
                call = task.work, tool, level, outcome.round, nbytes(tool), outcome.seconds
                self.calls.append(Call(*call, *traffic.pop()))
            yield outcome

    def _contended(
        self, label: str, contestant: Contestant, level: float, traffic: list[tuple[Traffic | None, Traffic | None]]
    ) -> Contestant:
        alone: Traffic | None = None

        def prepare() -> None:
            nonlocal alone
            os.sync()  # pending writes of others would disturb the measurement of the load processes
            self.loads.pace(level * self.bandwidth)
            watched = self.loads.watched(_ALONE)  # also without load, so that calls at every level wait equally
            alone = watched if level else None
            contestant.prepare()  # last: it frees memory, which the host may take while it lies free

        def run() -> str:
            before = self.loads.begin()
            way = contestant.run()
            traffic[:] = [(alone, self.loads.reading() - before if level else None)]
            return way if isinstance(way, str) else way.way

        def finish() -> None:
            self.loads.pace(0)
            contestant.finish()

        return Contestant(label, run, prepare, finish)


def weights(rounds: int, levels: Sequence[float] = LEVELS) -> list[float]:
    """The weight of every call of a :class:`Contention`: about its seconds."""
    return [_CALL] * ((len(WORKS) * len(TOOLS) + len(WAYS)) * len(levels) * rounds)
