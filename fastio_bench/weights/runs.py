"""Runs the works of ``fastio-bench weights`` in interleaved rounds, each call in a fresh process."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastio_bench.harness.children import completed
from fastio_bench.harness.rounds import Contestant, Failure, Measured, Sample, Task, interleave
from fastio_bench.machine import disk_limit
from fastio_bench.machine.disk_copy import read_and_write
from fastio_bench.weights import models, ways
from fastio_bench.weights.child import Job
from fastio_bench.weights.memory_copy import copy_shards

COLD, WARM = "cold", "warm"
MEMORY = "memory limit"
# A small tensor and a stream are asked for when a program starts: their files are cold.
STATES = {
    ways.INTO: (COLD, WARM),
    ways.SLICES: (COLD, WARM),
    ways.SMALL: (COLD,),
    ways.STREAM: (COLD,),
    ways.SAVE: ("",),
    ways.CONVERT: (COLD,),
}


def named(work: str, state: str) -> str:
    """A work on files of that state, in results."""
    return f"{work}, {state}" if state else work


@dataclass
class WeightRuns:
    """Works by tools, ``rounds`` each. ``details``: what each call said besides its time, as JSON.

    ``tell(what, weight)`` is called for the progress.
    """

    folder: Path
    rounds: int
    model: models.Model
    works: Sequence[str]
    tools: Sequence[str]
    tell: Callable[[str, float], None] = field(default=lambda what, weight: None)
    details: list[dict[str, Any]] = field(default_factory=list)

    def weights(self) -> list[float]:
        """The weight of every call to come."""
        return [1.0 for work, state in self._steps() for _ in range(self.rounds * len(self._taking_part(work, state)))]

    def run(self) -> Iterator[Sample | Failure]:
        """Every outcome, as soon as it is known."""
        self.tell(f"{self.model.label}: writing it", 0)
        made = self.folder / "model"
        made.mkdir()
        models.write(self.model, made)
        for work, state in self._steps():
            name = named(work, state)
            task = Task(name, self.model.name, self.model.nbytes)
            contestants = [self._contestant(tool, work, state, made) for tool in self._taking_part(work, state)]
            for outcome in interleave(task, contestants, self.rounds):
                self.tell(f"{self.model.label}: {name}", 1.0)
                yield outcome

    def _steps(self) -> list[tuple[str, str]]:
        return [(work, state) for work in self.works for state in STATES[work]]

    def _taking_part(self, work: str, state: str) -> list[str]:
        able = [tool for tool in ways.WAYS[work] if tool in self.tools]
        if not able or work not in (ways.INTO, ways.STREAM, ways.CONVERT):
            return able
        return [*able, disk_limit.TOOL if state == COLD else MEMORY]

    def _contestant(self, tool: str, work: str, state: str, made: Path) -> Contestant:
        target = self.folder / "saved"

        def prepare() -> None:
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            os.sync()

        if tool == disk_limit.TOOL and work == ways.CONVERT:
            return Contestant(tool, lambda: read_and_write(ways.shards(made, ".bin"), target / "limit"), prepare)
        if tool == disk_limit.TOOL:
            largest = max((Path(path) for path in ways.shards(made)), key=lambda path: path.stat().st_size)
            return Contestant(tool, lambda: disk_limit.find().read(largest, self.model.nbytes), os.sync)
        if tool == MEMORY:
            return Contestant(tool, lambda: copy_shards(ways.shards(made)), os.sync)
        job = Job(tool, work, state, self.model.name, self.model.nbytes, str(made), str(target))
        return Contestant(tool, lambda: self._fresh(job), prepare)

    def _fresh(self, job: Job) -> Measured:
        code = f"import sys; sys.path[:] = {sys.path!r}; from fastio_bench.weights.child import main; main(sys.argv[1])"
        child = completed([sys.executable, "-c", code, json.dumps(job)])
        if child.returncode:
            last = (child.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise RuntimeError(f"the fresh process ended with status {child.returncode}: {last}")
        said = json.loads(child.stdout.splitlines()[-1])
        self.details.append({"tool": job.tool, "name": named(job.work, job.state), **said})
        return Measured(said["seconds"], said["cpu"], said["extra"], taken_back=said["taken_back"])
