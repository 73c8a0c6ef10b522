"""Checks measurements against the project's goals. Pure.

The goals are those that were set before the project began. Met and missed ones are both shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fastio_bench.harness.stats import Summary
from fastio_bench.machine import disk_limit, memory_limit
from fastio_bench.peers import compare
from fastio_bench.report.table import MEASURED

MIB = 1 << 20
MAPPED = ("safetensors", "torch, mmap")  # they map the file and copy nothing
_OWN = ("fastio", "fastio, unverified")
_LIMITS = (disk_limit.TOOL, disk_limit.RING)  # if both were measured, the faster one counts


@dataclass(frozen=True, slots=True)
class Goal:
    """One goal: the target ``asked`` and the value ``measured``, in ``unit``. ``least``: whether more is better.

    ``origin`` says where the figure comes from, as that of a :class:`ResultTable` does.
    """

    work: str
    workload: str
    against: str
    asked: float
    measured: float
    unit: str = "x"
    least: bool = True
    origin: str = MEASURED

    @property
    def met(self) -> bool:
        return self.measured >= self.asked if self.least else self.measured <= self.asked

    def document(self) -> dict[str, Any]:
        """The goal, and whether it is met, for JSON."""
        return {**asdict(self), "met": self.met}


def figures(asked: float, measured: float) -> tuple[str, str]:
    """Both as text with two decimals, or with more if they would look equal."""
    shown = [(f"{asked:.{digits}f}", f"{measured:.{digits}f}") for digits in range(2, 6)]
    return next((pair for pair in shown if pair[0] != pair[1]), shown[0])


def check(summaries: Sequence[Summary], large: frozenset[str], import_seconds: float | None = None) -> list[Goal]:
    """The goals that these summaries can answer. ``large``: the workloads with goals for bandwidth."""
    by_task: dict[tuple[str, str], dict[str, Summary]] = {}
    for summary in summaries:
        by_task.setdefault((summary.work, summary.workload), {})[summary.tool] = summary
    goals: list[Goal] = []
    for (work, workload), tools in by_task.items():
        if "fastio" in tools:
            goals += _bandwidth(work, workload, tools) if workload in large else _never_slower(work, workload, tools)
            peaks = [tools[name].extra_bytes for name in _OWN if name in tools]
            known = [peak for peak in peaks if peak is not None]
            if known:
                goals.append(Goal(work, workload, "memory beyond the object", 64, max(known) / MIB, "MiB", least=False))
    if import_seconds is not None:
        goals.append(Goal("import fastio", "", "after import torch", 50, import_seconds * 1e3, "ms", least=False))
    return goals


def _bandwidth(work: str, workload: str, tools: dict[str, Summary]) -> list[Goal]:
    goals: list[Goal] = []
    ours = tools["fastio"].bandwidth
    disk = max(_LIMITS, key=lambda name: tools[name].best_bandwidth if name in tools else 0.0)

    def at_least(asked: float, other: str, theirs: Callable[[Summary], float] = lambda s: s.bandwidth) -> None:
        if other in tools:
            goals.append(Goal(work, workload, other, asked, ours / theirs(tools[other])))

    if work == compare.DURABLE:
        at_least(2.3, "torch")
        at_least(1.5, "torch, no CRC")
        at_least(0.9, disk, lambda s: s.best_bandwidth)
        if "torch" in tools:
            share = tools["fastio"].cpu_per_gb / tools["torch"].cpu_per_gb
            goals.append(Goal(work, workload, "torch's CPU seconds", 1 / 3, share, least=False))
    elif work == compare.CACHED:
        at_least(2.3, "torch")
        at_least(1.0, "torch, no CRC")
    elif work == compare.COLD:
        at_least(1.7, "torch")
        at_least(0.95, disk, lambda s: s.best_bandwidth)
    elif work == compare.WARM:
        at_least(4.0, "torch")
        if {"torch", "fastio, unverified"} <= tools.keys():
            ratio = tools["fastio, unverified"].bandwidth / tools["torch"].bandwidth
            goals.append(Goal(f"{work}, unverified", workload, "torch", 5.0, ratio))
    if work in compare.WORKS:
        rivals = [s for name, s in tools.items() if name not in (*_OWN, *_LIMITS, memory_limit.TOOL)]
        kind = "the best peer"
        if work in (compare.COLD, compare.WARM):
            rivals, kind = [s for s in rivals if s.tool not in MAPPED], "the best peer that copies"
        if rivals:
            best = max(rivals, key=lambda s: s.bandwidth)
            goals.append(Goal(work, workload, f"{kind}, {best.tool}", 1.0, ours / best.bandwidth))
    return goals


def _never_slower(work: str, workload: str, tools: dict[str, Summary]) -> list[Goal]:
    if work not in compare.WORKS or "torch" not in tools:
        return []
    return [Goal(work, workload, "torch", 1.0, tools["fastio"].bandwidth / tools["torch"].bandwidth)]
