"""Orders the fresh processes of ``fastio-bench checkpoint``: interleaved rounds of saves and restores."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from fastio_bench.checkpoint import child
from fastio_bench.checkpoint.state import Shape
from fastio_bench.checkpoint.works import (
    BLOCKED_OF,
    COLUMNS,
    DCP,
    DURABLE,
    FASTIO,
    INCREMENTAL,
    OF_TORCH,
    RANK_COUNTS,
    RANKS_SAVE,
    RESHARD,
    RESTORE,
    RESTORERS,
    ROWS,
    SAVERS,
    SLOWED,
    SLOWING,
    STEP_OF,
    TORCH,
    WORLD,
    Job,
    works_of,
)
from fastio_bench.harness.fresh_process import ChildError
from fastio_bench.harness.rounds import Failure, Sample, describe
from fastio_bench.machine import disk_limit
from fastio_bench.peers.contestants import remove

SAVES = 2  # saves of one process, after a first one that does not count
MEMORY, DISK = 4, 4  # the most memory of all processes and the most disk of all files, in sizes of the state
_KEPT = "of-"  # the prefix of files that other processes will read
_LIMITED = (
    *((DURABLE, TORCH), (RANKS_SAVE, DCP), (RESTORE, TORCH)),
    *((work, FASTIO) for work in STEP_OF.values()),
)  # the disk's limit is measured after each of these
_START = 4.0  # seconds until a fresh process has imported everything
# Seconds for 10^9 bytes, including set-up: making the state, saving it once, learning.
_MAKE, _SAVE, _LEARN = 2.0, 1.0, 16.0


@dataclass(frozen=True, slots=True)
class Step:
    """One or more processes at the same time. If they fail, ``tool`` has failed at ``works``.

    ``weight`` is a rough estimate of its seconds.
    """

    what: str
    tool: str
    works: tuple[str, ...]
    jobs: tuple[Job, ...]
    weight: float


@dataclass
class Runs:
    """All measurements of a state of ``nbytes``, with files below ``folder``, in ``rounds`` rounds.

    ``tell(what, weight)`` is called for the progress.
    """

    folder: Path
    shape: Shape
    nbytes: int
    rounds: int
    tell: Callable[[str, float], None] = field(default=lambda what, weight: None)

    def run(self) -> Generator[Sample | Failure, None, None]:
        """Every outcome, as soon as it is known. A tool that failed takes no part in later rounds."""
        failed = set()
        counts: dict[tuple[str, str], int] = {}
        for step in self.steps():
            self.tell(step.what, 0)
            if (step.works, step.tool) not in failed:
                limited: list[Sample] = []
                with closing(self._outcomes(step)) as outcomes:
                    for outcome in outcomes:
                        if isinstance(outcome, Failure):
                            failed.add((step.works, step.tool))
                            yield outcome
                            continue
                        key = outcome.work, outcome.tool
                        counts[key] = counts.get(key, -1) + 1
                        sample = replace(outcome, round=counts[key])
                        yield sample
                        if key in _LIMITED:
                            limited.append(sample)
                for sample in limited:
                    yield self._limit(sample)
            self.tell(step.what, step.weight)

    def _limit(self, sample: Sample) -> Sample | Failure:
        """The disk's limit for as many bytes. It runs in this process: fio would outlive a killed child."""
        try:
            if sample.work == RESTORE:
                took = disk_limit.find().read(self.folder / OF_TORCH, sample.nbytes)
            else:
                took = disk_limit.fresh_file(self.folder, sample.nbytes)
        except OSError as error:
            return Failure(sample.work, sample.workload, disk_limit.TOOL, sample.round, describe(error))
        own = disk_limit.TOOL, sample.round, sample.nbytes, took.seconds, took.cpu_seconds
        return Sample(sample.work, sample.workload, *own, way=took.way)

    def _outcomes(self, step: Step) -> Generator[Sample | Failure, None, None]:
        """The outcomes of the step's processes, or their failure. Their files are removed."""
        try:
            with closing(child.run(step.jobs)) as outcomes:
                yield from outcomes
        except ChildError as error:
            for work in step.works:
                yield Failure(work, self.shape.name, step.tool, 0, describe(error))
        finally:
            for path in self.folder.iterdir():
                if not path.name.startswith(_KEPT):
                    remove(path)

    def steps(self) -> list[Step]:
        """All steps, in order."""
        size = self.nbytes / 1e9
        made, saved = _START + _MAKE * size, _SAVE * size
        counted = self.rounds * SAVES
        return [
            Step("fastio learns", FASTIO, (DURABLE,), (self._job("saving.learn"),), made + _LEARN * size),
            *(self._saves(tool, made, saved) for _ in range(self.rounds) for tool in SAVERS),
            *(self._slowed(tool, made, saved) for _ in range(self.rounds) for tool in SLOWING),
            *(
                self._by_ranks(
                    "rank_steps.save", count, counted, (BLOCKED_OF[count], STEP_OF[count]), 3 * (counted + 1) * saved
                )
                for count in RANK_COUNTS
            ),
            self._by_ranks("ranks.run", WORLD, self.rounds, (RANKS_SAVE,), 4 * (self.rounds + 3) * saved),
            Step(
                "a tenth changed",
                FASTIO,
                (INCREMENTAL,),
                (self._job("saving.save_changes", saves=counted),),
                made + 2 * (counted + 1) * saved,
            ),
            Step(
                "consolidation",
                FASTIO,
                (ROWS, COLUMNS),
                (self._job("consolidating.run", saves=self.rounds),),
                _START + 16 * (self.rounds + 1) * saved / 3,
            ),
            Step("writing", TORCH, (RESTORE,), (self._job("restoring.prepare", TORCH),), made + 3 * saved),
            self._by_ranks("rank_steps.restore", WORLD, self.rounds, (RESHARD,), (3 * self.rounds + 6) * saved),
            *(
                Step(f"{tool}: restores", tool, (RESTORE,), (self._job("restoring.restore", tool),), made + 1.5 * saved)
                for _ in range(self.rounds)
                for tool in RESTORERS
            ),
        ]

    def _saves(self, tool: str, made: float, saved: float) -> Step:
        calls = (SAVES + 1) * (2 if tool == FASTIO else 1)  # fastio's saves alternate with plain copies
        jobs = (self._job("saving.save", tool, SAVES),)
        return Step(f"{tool}: saves", tool, works_of(tool), jobs, made + calls * saved)

    def _slowed(self, tool: str, made: float, saved: float) -> Step:
        jobs = (self._job("slowdown.run", tool, SAVES),)
        return Step(f"{tool}: steps meanwhile", tool, (SLOWED,), jobs, made + (SAVES + 1) * (1 + 2 * saved))

    def _by_ranks(self, task: str, count: int, saves: int, works: tuple[str, ...], seconds: float) -> Step:
        jobs = tuple(self._job(task, saves=saves, rank=rank, world=count) for rank in range(count))
        return Step(f"{count} ranks", FASTIO, works, jobs, count * _START / 2 + seconds + _MAKE * self.nbytes / 1e9)

    def _job(self, task: str, tool: str = "", saves: int = 0, rank: int = 0, world: int = 1) -> Job:
        return Job(task, str(self.folder), self.shape.depth, self.shape.width, tool, saves, rank, world)
