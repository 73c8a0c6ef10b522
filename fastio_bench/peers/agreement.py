"""Compares two runs of ``fastio-bench peers``. Pure.

A row is one work on one workload. The runs agree on it if every tool's speed over torch's has the same order of
magnitude in both (within a factor of the square root of ten), and if the same tool is the fastest, or the fastest is at
most 20 % ahead in both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from fastio_bench.harness import stats
from fastio_bench.machine import disk_limit, memory_limit
from fastio_bench.report.documents import Document
from fastio_bench.report.table import Cell, ResultTable

_COMMAND = "peers"
_MARGIN = 1.2
_MAGNITUDE = math.sqrt(10)
_LIMITS = (
    disk_limit.TOOL,
    disk_limit.RING,
    memory_limit.TOOL,
)  # limits of the machine are no competitors
_NOTE = (
    "ratios: each tool's speed over torch's in one run, over the same of the other run; they agree within the square "
    "root of ten. Winners must be the same where the best is more than 20 % ahead of the next in either run"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One work on one workload, in both runs, by the tools that both have.

    ``tool`` is the one whose ratios differ most, by the factor ``apart``. ``winners`` and ``margins``: the fastest tool
    of each run, and its speed over the next.
    """

    work: str
    workload: str
    tool: str
    apart: float
    winners: tuple[str, str]
    margins: tuple[float, float]

    @property
    def agrees(self) -> bool:
        """Whether the runs agree on it."""
        same = self.winners[0] == self.winners[1] or max(self.margins) <= _MARGIN
        return self.apart < _MAGNITUDE and same


def agreement(one: Document, other: Document) -> list[Row]:
    """A row for each work on each workload that both runs measured with torch and another tool."""
    first, second = _speeds(one), _speeds(other)
    rows = []
    for work, workload in first:
        here, there = first[work, workload], second.get((work, workload), {})
        tools = [tool for tool in here if tool in there]
        if stats.BASELINE not in tools or len(tools) == 1:
            continue
        moved = {tool: _over_torch(here, tool) / _over_torch(there, tool) for tool in tools}
        apart = {tool: max(times, 1 / times) for tool, times in moved.items()}
        farthest = max(apart, key=lambda tool: apart[tool])
        (won, ahead), (won_there, ahead_there) = (_winner({tool: run[tool] for tool in tools}) for run in (here, there))
        rows.append(Row(work, workload, farthest, apart[farthest], (won, won_there), (ahead, ahead_there)))
    return rows


def tables(documents: Iterable[Document]) -> Iterator[ResultTable]:
    """A table for every two runs with common rows."""
    runs = [document for document in documents if document.command == _COMMAND]
    for one, other in combinations(runs, 2):
        rows: list[list[Cell]] = [
            [
                "agree" if row.agrees else "differ",
                *(row.work, row.workload, row.apart, row.tool),
                *(f"{winner}, {margin:.2f} x" for winner, margin in zip(row.winners, row.margins, strict=True)),
            ]
            for row in agreement(one, other)
        ]
        if rows:
            said = sum(row[0] == "agree" for row in rows)
            title = f"{one.path.stem} and {other.path.stem} agree in {said} of {len(rows)} rows"
            columns = ("", "work", "workload", "ratios apart, most x*", "of", one.path.stem, other.path.stem)
            yield ResultTable("agreement", title, columns, rows, note=_NOTE)


def _speeds(document: Document) -> dict[tuple[str, str], dict[str, float]]:
    """Bytes a second by row and tool, without the limits."""
    speeds: dict[tuple[str, str], dict[str, float]] = {}
    for own in document.summaries:
        if own.tool not in _LIMITS and own.bandwidth > 0:
            speeds.setdefault((own.work, own.workload), {})[own.tool] = own.bandwidth
    return speeds


def _over_torch(speeds: Mapping[str, float], tool: str) -> float:
    return speeds[tool] / speeds[stats.BASELINE]


def _winner(speeds: Mapping[str, float]) -> tuple[str, float]:
    """The fastest tool, and its speed over the next."""
    best, following = sorted(speeds, key=lambda tool: -speeds[tool])[:2]
    return best, speeds[best] / speeds[following]
