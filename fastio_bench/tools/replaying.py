"""Compares the tuner with an oracle on known timings, recorded or synthetic. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from fastio.dicts.sizes import shape
from fastio.dicts.tuner import Tuner
from fastio_bench.tools.trace import Row

TIE = 1.02  # tools within this ratio count as equally good
WINDOW = 51  # the number of rows, nearest in size, whose median is a tool's expected time
TOLD = 0.98  # half of the sign test's 95 % interval, in units of the square root of the number of rows

Times = dict[str, float]
"""Seconds by tool."""


class Timed(NamedTuple):
    """A call to replay: the ``seconds`` of each tool for it, and the ``expected`` seconds.

    ``alike`` are the tools that the nearest rows cannot distinguish from the best (:func:`alike`), with the best
    itself.
    """

    nbytes: int
    seconds: Times
    expected: Times
    alike: frozenset[str] = frozenset()


class Call(NamedTuple):
    """A replayed call: the chosen tool and the oracle's, each with its actual and its expected seconds.

    The oracle knows the expected times, so it knows the best tool at each size, but not the luck of a single call.
    ``least_seconds`` are those of the fastest tool. ``alike``: the nearest rows cannot distinguish the tool from the
    oracle's.
    """

    nbytes: int
    tool: str
    exploring: bool
    seconds: float
    expected: float
    oracle: str
    oracle_seconds: float
    oracle_expected: float
    least_seconds: float
    alike: bool = False


def timed(rows: Sequence[Row]) -> list[Timed]:
    """The calls of one work. A tool's expected time is its median over the calls nearest in size."""
    tools = [tool for tool in rows[0].seconds if all(tool in row.seconds for row in rows)] if rows else []
    level = [shape(row.nbytes) for row in rows]
    relative = {tool: [math.log(row.seconds[tool]) - at for row, at in zip(rows, level, strict=True)] for tool in tools}
    order = sorted(range(len(rows)), key=lambda index: rows[index].nbytes)
    found: dict[int, Timed] = {}
    for place, index in enumerate(order):
        near = order[max(0, place - WINDOW // 2) : place + WINDOW // 2 + 1]
        expected = {
            tool: math.exp(median(values[other] for other in near) + level[index]) for tool, values in relative.items()
        }
        seconds = {tool: rows[index].seconds[tool] for tool in tools}
        best = min(expected, key=expected.__getitem__)
        equal = alike([rows[other].seconds for other in near], best)
        found[index] = Timed(rows[index].nbytes, seconds, expected, equal)
    return [found[index] for index in range(len(rows))]


def alike(near: Sequence[Mapping[str, float]], best: str) -> frozenset[str]:
    """The tools that these timings cannot distinguish from the ``best``.

    It is a sign test on pairs, since all tools of a row were timed at nearly the same time: with 51 rows, a tool that
    the best one beat in fewer than 33 is not slower with 95 % confidence. The oracle's choice between the two is then
    luck.
    """
    most = len(near) / 2 + TOLD * math.sqrt(len(near))
    return frozenset(tool for tool in near[0] if sum(row[tool] > row[best] for row in near if tool in row) < most)


def slowed(calls: Iterable[Timed], tool: str, factor: float, start: int) -> list[Timed]:
    """The same calls, with one tool ``factor`` times slower from call ``start`` on."""

    def changed(times: Times) -> Times:
        return {**times, tool: times[tool] * factor}

    return [
        call if number < start else Timed(call.nbytes, changed(call.seconds), changed(call.expected))
        for number, call in enumerate(calls)
    ]


def replay(calls: Iterable[Timed], tuner: Tuner) -> list[Call]:
    """Let the tuner choose for each call, and give it the time of the chosen tool."""
    warm: set[str] = set()
    done = []
    for call in calls:
        nbytes, seconds = call.nbytes, call.seconds
        choice = tuner.choose(nbytes, tuple(seconds))
        tuner.observe(nbytes, choice.tool, seconds[choice.tool], first=choice.tool not in warm)
        warm.add(choice.tool)
        done.append(_call(call, choice.tool, choice.exploring))
    return done


def judged(calls: Iterable[Timed], tools: Iterable[str], seconds: Iterable[float] | None = None) -> list[Call]:
    """Given choices, one tool a call, beside the oracle. ``seconds`` are their measured times, if there are any."""
    done = [_call(call, tool, False) for call, tool in zip(calls, tools, strict=True)]
    if seconds is None:
        return done
    return [call._replace(seconds=took) for call, took in zip(done, seconds, strict=True)]


def over_oracle(calls: Iterable[Call]) -> float:
    """The total time over that of the oracle."""
    return _ratio((call.seconds, call.oracle_seconds) for call in calls)


def expected_over_oracle(calls: Iterable[Call]) -> float:
    """The total time over that of the oracle, with the luck of each call taken out of both."""
    return _ratio((call.expected, call.oracle_expected) for call in calls)


def oracle_over_least(calls: Iterable[Call]) -> float:
    """The oracle's total time over that of the fastest tool of each call, which cannot be known beforehand."""
    return _ratio((call.oracle_seconds, call.least_seconds) for call in calls)


def share_best(calls: Sequence[Call], tie: float = TIE) -> float:
    """The share of calls, 0 to 1, on the oracle's tool or one with an expected time at most 2 % longer."""
    return sum(call.expected <= tie * call.oracle_expected for call in calls) / len(calls) if calls else math.nan


def share_alike(calls: Sequence[Call], tie: float = TIE) -> float:
    """As :func:`share_best`, but tools that the timings cannot distinguish from the oracle's count too."""
    good = sum(call.alike or call.expected <= tie * call.oracle_expected for call in calls)
    return good / len(calls) if calls else math.nan


def _call(call: Timed, tool: str, exploring: bool) -> Call:
    nbytes, seconds, expected, equal = call
    oracle = min(expected, key=expected.__getitem__)
    return Call(
        nbytes,
        tool,
        exploring,
        seconds[tool],
        expected[tool],
        oracle,
        seconds[oracle],
        expected[oracle],
        min(seconds.values()),
        tool in equal,
    )


def _ratio(pairs: Iterable[tuple[float, float]]) -> float:
    ours = theirs = 0.0
    for own, other in pairs:
        ours += own
        theirs += other
    return ours / theirs if theirs > 0 else math.nan
