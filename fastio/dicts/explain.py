"""Explains a choice: the tool, the reason, and the expected time of each tool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fastio.dicts.choice import Opinion
from fastio.dicts.context import Context
from fastio.dicts.sizes import describe_seconds, shape
from fastio.dicts.tool_record import BLANK
from fastio.dicts.tuner import Tuner
from fastio.sizes import both_units

_LIKELY_BEST = 0.8  # the chance from which on a tool is called the fastest
LIKELY = 2.0  # deviations either way
_ONLY_RATIOS = ("prior", "unknown")  # sources of an opinion without a measurement


class Entry(NamedTuple):
    """One tool of an explanation. ``seconds`` is its expected time, likely between ``low`` and ``high``.

    They are None where only the ratio to others is known. ``relative`` is its time over the first tool's. ``samples``
    were taken at this size, ``nearby`` at sizes around it; ``source`` says what the time is based on.
    """

    tool: str
    seconds: float | None
    low: float | None
    high: float | None
    relative: float
    samples: int
    nearby: int
    source: str
    failure: str | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Which tool a dictionary would use now, why, and how sure it is. Printed, it is a table.

    ``confidence`` is the chance, 0 to 1, that the first of ``entries`` is the fastest; for tools that were never tried
    here, it relies on priors. ``tool`` is another one when the dictionary would explore.
    """

    context: Context
    nbytes: int
    tool: str
    reason: str
    confidence: float
    entries: tuple[Entry, ...]

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [
            ("tool", "time", "likely between", "relative", "samples", "nearby", "known from")
        ]
        rows += [_row(entry) for entry in self.entries]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        what = f"{self.context.op} of {both_units(self.nbytes)} as {self.context.format} on {self.context.device}"
        circumstances = describe(self.context)
        return "\n".join(
            [
                what + (f" ({circumstances})" if circumstances else ""),
                f"{self.tool}: {self.reason}",
                self._verdict(),
                *table,
            ]
        )

    def _verdict(self) -> str:
        first = self.entries[0].tool
        chance = "more than 99%" if self.confidence > 0.99 else f"{self.confidence:.0%}"
        if len(self.entries) == 1:
            return f"{first} is the only tool here"
        untried = [entry.tool for entry in self.entries if entry.source in _ONLY_RATIOS]
        likely = self.confidence >= _LIKELY_BEST
        if likely and not untried and self.tool == first:
            return f"{first} is the fastest, by a chance of {chance}"
        said = f"{first} is expected to be the fastest, {'' if likely else 'but only '}by a chance of {chance}"
        if not untried:
            return said
        if len(untried) == len(self.entries):
            return f"{said}; none of them was tried here yet"
        return f"{said}; not tried here yet: {', '.join(untried)}"


def describe(context: Context) -> str:
    """Whether a save is durable, whether a load's file is cached, and how small the extents are, in words."""
    words = []
    if context.durable is not None:
        words.append("durable" if context.durable else "not durable")
    if context.resident is not None:
        words.append("in the page cache" if context.resident else "not in the page cache")
    if context.small:
        words.append(("", "extents of 64 KiB to 1 MiB", "extents of 4 to 64 KiB", "extents below 4 KiB")[context.small])
    return ", ".join(words)


def _row(entry: Entry) -> tuple[str, ...]:
    likely = took = "-"
    if entry.seconds is not None and entry.low is not None and entry.high is not None:
        took = describe_seconds(entry.seconds)
        likely = f"{describe_seconds(entry.low)} .. {describe_seconds(entry.high)}"
    known = entry.source if entry.failure is None else f"{entry.source}; avoided: {entry.failure}"
    return entry.tool, took, likely, f"{entry.relative:.2f}", str(entry.samples), str(entry.nearby), known


def explain_tuner(tuner: Tuner, context: Context, nbytes: int, tools: tuple[str, ...], first: bool) -> Explanation:
    """The explanation of one tuner, which is not changed. ``first``: for the process's first call."""
    choice, ranked = tuner.explain(nbytes, tools, first)
    level = shape(nbytes)
    anchored = any(opinion.source not in _ONLY_RATIOS for opinion in ranked)
    entries = []
    for opinion in ranked:
        seconds = low = high = None
        if anchored:
            middle, half = opinion.mean + level, LIKELY * opinion.deviation
            low, seconds, high = (math.exp(min(value, 100.0)) for value in (middle - half, middle, middle + half))
        relative = math.exp(min(opinion.mean - ranked[0].mean, 100.0))
        failure = tuner.records.get(opinion.tool, BLANK).failure
        known = opinion.samples, opinion.nearby, opinion.source
        entries.append(Entry(opinion.tool, seconds, low, high, relative, *known, failure.reason if failure else None))
    return Explanation(context, nbytes, choice.tool, choice.reason, chance_of_best(ranked), tuple(entries))


def chance_of_best(ranked: Sequence[Opinion]) -> float:
    """The chance, 0 to 1, that the first is the fastest: its chances against each other tool, multiplied."""
    best, chance = ranked[0], 1.0
    for other in ranked[1:]:
        deviation = math.hypot(best.deviation, other.deviation)
        chance *= 0.5 * (1 + math.erf((other.mean - best.mean) / (deviation * math.sqrt(2))))
    return chance
