"""Fills this machine's dictionaries: saves and loads of all sizes through ``policy="auto"``, several rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import fastio
from fastio import dicts
from fastio_bench.harness import warmup
from fastio_bench.harness.memory_reserve import Reserve
from fastio_bench.workloads.objects import Workload

BATCHES = (1, 4, 16, 64, 256)
QUICK_BATCHES = (1, 16)
QUICK_ROUNDS = 8


Calls: TypeAlias = dict[str, dict[str, list[dict[str, Any]]]]
"""Every call by workload and work, in order: the tool, its route, the reason for the tool, and the seconds."""


@dataclass
class Tuning:
    """Saves and loads the workloads at most ``rounds`` times. ``tell(what, weight)`` is called for the progress."""

    folder: Path
    rounds: int
    workloads: Sequence[Workload]
    tell: Callable[[str, float], None] = field(default=lambda what, weight: None)
    calls: Calls = field(default_factory=dict)

    def weights(self) -> list[float]:
        """The weight of every round."""
        return [_weight(workload) for workload in self.workloads for _ in range(self.rounds)]

    def run(self) -> None:
        """Run the calls, in which the dictionaries try the tools and learn their times."""
        for workload in self.workloads:
            self.tell(workload.label, 0)
            thing = workload.make()

            def done(label: str = workload.label, weight: float = _weight(workload)) -> None:
                self.tell(label, weight)

            def heard(work: str, call: fastio.Transfer, name: str = workload.name) -> None:
                took = {"tool": call.tool, "route": call.route, "reason": call.reason, "seconds": call.seconds}
                self.calls.setdefault(name, {}).setdefault(work, []).append(took)

            with Reserve(2 * workload.nbytes) as reserve:
                warmup.warm_up(workload, thing, self.folder / "tuning.pt", reserve, self.rounds, done, heard)


def learned(folder: Path, workloads: Sequence[Workload]) -> list[tuple[str, dicts.Explanation]]:
    """The answers of the folder's dictionaries for each workload and work."""
    return [
        (f"{workload.label}, {work}", answer)
        for workload in workloads
        for work, answer in warmup.learned(folder, workload).items()
    ]


def _weight(workload: Workload) -> float:
    return 0.1 + warmup.SECONDS_PER_GB * workload.nbytes / 1e9
