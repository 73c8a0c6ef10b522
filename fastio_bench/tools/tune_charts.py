"""The chart of what ``fastio-bench tune`` learned: how fast each tool is at each size, and which one is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastio.dicts import Explanation
from fastio_bench.report import findings_tables, summary_tables
from fastio_bench.report.charts import Chart, Color, Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ONE = "one tensor, "
_HEIGHT = 250  # CSS pixels
_MIB = 1 << 20


def sheets(findings: Mapping[str, Any]) -> Iterator[Sheet]:
    """Of what the dictionaries say of one tensor of several sizes, if they were asked."""
    works: dict[str, list[Explanation]] = {}
    for label, answer in findings_tables.learned(findings.get("learned") or ()):
        if label.startswith(_ONE):
            works.setdefault(label.rpartition(", ")[2], []).append(answer)
    tools = list(dict.fromkeys(entry.tool for own in works.values() for answer in own for entry in answer.entries))
    if tools:
        text = "MB/s that the dictionaries expect of each tool, from what they saw; a ring marks the tool they use now."
        drawn = [Chart(work, _HEIGHT, _Lines(own, tools)) for work, own in works.items()]
        yield Sheet("learned", "Speed over size, as learned", text, tools, drawn)


class _Lines:
    """A line for each tool over the size."""

    def __init__(self, answers: Sequence[Explanation], tools: Sequence[str]) -> None:
        self._answers, self._tools = answers, tools

    def __call__(self, axes: Axes, color: Color) -> None:
        for number, tool in enumerate(self._tools):
            points = sorted(point for answer in self._answers for point in _points(answer, tool))
            if points:
                sizes, speeds = zip(*points, strict=True)
                axes.plot(sizes, speeds, color=color(number), marker="o", ms=3.5, lw=1.6)
        for answer in self._answers:
            for used in _points(answer, answer.tool):
                ring = color(self._tools.index(answer.tool))
                axes.plot(*used, "o", ms=10, markerfacecolor="none", markeredgecolor=ring, markeredgewidth=1.6)
        axes.set_xscale("log", base=2)
        every = sorted({answer.nbytes for answer in self._answers})[:: -(-len(self._answers) // 6)]
        axes.set_xticks([size / _MIB for size in every], list(map(summary_tables.size, every)))
        axes.set_xticks([], minor=True)
        axes.set(xlabel="MiB", ylabel="MB/s", ylim=(0, None))
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.margins(x=0.08, y=0.12)
        axes.grid(axis="y")


def _points(answer: Explanation, tool: str) -> list[tuple[float, float]]:
    """MiB and MB/s of the tool, where it is known what it takes."""
    return [
        (answer.nbytes / _MIB, answer.nbytes / entry.seconds / 1e6)
        for entry in answer.entries
        if entry.tool == tool and entry.seconds
    ]
