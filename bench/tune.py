"""Fills this machine's dictionaries: saves and loads of all sizes through ``policy="auto"``, several rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fastio import dicts, plan, registry
from fastio.bench import warmup
from fastio.bench.reserve import Reserve
from fastio.bench.workloads import Workload
from fastio.formats.sense import PT

BATCHES = (1, 4, 16, 64, 256)
QUICK_BATCHES = (1, 16)
ROUNDS = 12
QUICK_ROUNDS = 6


@dataclass
class Tuning:
    """What is saved and loaded, and how often. ``tell(what, weight)`` hears what is being done and is done."""

    folder: Path
    rounds: int
    workloads: Sequence[Workload]
    tell: Callable[[str, float], None] = field(default=lambda what, weight: None)

    def weights(self) -> list[float]:
        """The weight of every round to come."""
        return [_weight(workload) for workload in self.workloads for _ in range(self.rounds)]

    def run(self) -> None:
        """Call after call, the dictionaries try the tools and keep what each took."""
        for workload in self.workloads:
            self.tell(workload.label, 0)
            thing = workload.make()

            def done(label: str = workload.label, weight: float = _weight(workload)) -> None:
                self.tell(label, weight)

            with Reserve(2 * workload.nbytes) as reserve:
                warmup.warm_up(thing, self.folder / "tuning.pt", reserve, self.rounds, done)


def learned(folder: Path, workloads: Sequence[Workload]) -> list[tuple[str, dicts.Explanation]]:
    """What the dictionaries of the folder's filesystem now say of each work on each workload."""
    cpu = frozenset({"cpu"})
    rows = []
    for workload in workloads:
        size = workload.nbytes, workload.count
        works = {
            "durable save": plan.save_context(PT, cpu, True, *size),
            "save": plan.save_context(PT, cpu, False, *size),
            "cold load": plan.load_context(PT, cpu, False, *size),
            "warm load": plan.load_context(PT, cpu, True, *size),
        }
        for work, context in works.items():
            able = {tool.name: tool.transport.capabilities for tool in _tools() if tool.transport is not None}
            names = plan.candidates(able, context.op, PT, cpu)
            dictionary = dicts.default(context.op, str(folder))
            rows.append((f"{workload.label}, {work}", dictionary.explain(context, workload.nbytes, names)))
    return rows


def _tools() -> list[registry.Tool]:
    return [registry.find(name) for name in registry.names()]


def _weight(workload: Workload) -> float:
    return 0.1 + warmup.SECONDS_PER_GB * workload.nbytes / 1e9
