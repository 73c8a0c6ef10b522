"""What to try, given what is believed: the price of a look against what it may bring. Pure.

A tool is tried while its time may, within the confidence, be below that of every other (upper confidence bounds: Auer,
Cesa-Bianchi and Fischer, 2002); later it is looked at now and then, the more seldom the more it costs. All of that out
of a budget of seconds: a few usual calls, and a share of the time since. So cheap sizes are tried at once, and a tool
that is far slower is not looked at where one call would cost as much as a hundred others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fastio.dicts.context import Choice
from fastio.dicts.evidence import Estimate

CONFIDENCE = 2.0  # deviations
LISTED_CONFIDENCE = 0.7  # at large sizes, in a tool that only the prior knows: there are too few calls to be curious
TIE = 0.03  # logarithm: less than this is not worth a try
EQUAL = 0.08  # logarithm: so much may be given away for less work of the processor, where nobody knows better
CAUTION = 0.7  # how quickly the confidence shrinks at calls dearer than the usual one
UNKNOWN_CALLS = 5  # a tool not measured near here is looked at after so many calls, whatever the prior says;
LISTED_SHARE = 0.01  # at large sizes as seldom as takes this share of the time, if the prior is right
LEAST_CALLS = 8
FIRST_REFRESH, LAST_REFRESH = 64, 1024  # calls
RUNNER_UP_SHARE, OTHERS_SHARE = 0.006, 0.0025  # of the time, for looking again at tools that are slower
PATIENCE = 3.0  # a look must pay for itself so many times over
LUCK = (0.03, 0.03, 0.01, 0.0005)  # expected gain of a look at a tool with 0, 1, 2, more samples: they may be outliers
SPELL = 0.8  # chance that one more sample was taken in the same busy spell of the machine, so that it says nothing,
LATER_SPELL = 0.3  # and that one later look was taken in another
LEAST_EXCESS = 0.02
BUDGET_CALLS = 5.0  # usual calls that may be spent on trying tools from the start,
BUDGET_SHARE = 0.01  # and the share of the time from then on
MOST_STAKE = 20.0  # usual calls that one try is charged with at most: more is bad luck


@dataclass(slots=True)
class Plan:
    """What to do at one bucket, until something is learned: ``choice``, and each other tool to look at again.

    ``refresh`` pairs a tool with the number of calls after which it is due. ``uses`` and ``until`` (a call) bound the
    plan's life. ``seconds`` is what the best tool should take, ``costs`` what trying each other one should cost beyond
    it, seconds.
    """

    ranked: list[Estimate]
    choice: Choice
    refresh: list[tuple[str, float]]
    seconds: float
    costs: dict[str, float]
    uses: int = 1
    until: int = 0


def pick(best: Estimate, others: Sequence[Estimate], dearness: float, large: bool) -> Estimate:
    """The estimate to act on: the lowest bound of ``best`` and the ``others`` that may be tried.

    ``dearness`` is the expected time over the usual call's; a dear call is a bad moment for experiments, since sizes
    nearby teach as much for less. ``large``: calls of which one counts.
    """
    chosen = best
    confidence = CONFIDENCE
    if dearness > 1 and best.known:
        confidence /= 1 + CAUTION * math.log2(dearness)
    lowest = best.mean - confidence * best.deviation - TIE
    for estimate in others:
        trust = min(confidence, LISTED_CONFIDENCE) if large and estimate.only_listed else confidence
        bound = estimate.mean - trust * estimate.deviation
        if bound < lowest:
            lowest, chosen = bound, estimate
    return chosen


def preferred(ranked: Sequence[Estimate], tools: Sequence[str]) -> Estimate:
    """The first in the order of ``tools`` that was measured and is equal in time to the fastest, by all that is known.

    Equal: less than 8 % slower, and less than the error of the two estimates. The fastest itself where there is none.
    """
    best = ranked[0]
    equal = [e for e in ranked if e.mean - best.mean <= min(EQUAL, math.hypot(best.deviation, e.deviation))]
    known = [estimate for estimate in equal if estimate.known]
    return min(known, key=lambda estimate: tools.index(estimate.tool)) if best.known else best


def refresh_calls(ranked: Sequence[Estimate], large: bool) -> list[tuple[str, float]]:
    """After how many calls to look again at each tool but the best. ``large``: calls of which one counts."""
    best = ranked[0]
    result = []
    for place, estimate in enumerate(ranked[1:]):
        calls = float(UNKNOWN_CALLS)
        if estimate.known:
            excess = _excess(best, estimate)
            share = OTHERS_SHARE if place else RUNNER_UP_SHARE
            drift = min(max(excess / share, FIRST_REFRESH), LAST_REFRESH)
            calls = max(LEAST_CALLS, min(drift, PATIENCE * excess / _expected_gain(best, estimate)))
        elif large and estimate.only_listed:
            calls = max(calls, min(_excess(best, estimate) / LISTED_SHARE, LAST_REFRESH))
        result.append((estimate.tool, calls))
    return result


def costs(ranked: Sequence[Estimate], seconds: float) -> dict[str, float]:
    """What trying each tool should cost beyond the ``seconds`` of the best, at least a little."""
    return {estimate.tool: _excess(ranked[0], estimate) * seconds for estimate in ranked[1:]}


def _excess(best: Estimate, other: Estimate) -> float:
    return max(math.expm1(min(other.mean - best.mean, 10.0)), LEAST_EXCESS)


def _expected_gain(best: Estimate, other: Estimate) -> float:
    """What knowing ``other`` exactly is expected to save, as a share of a call (expected improvement: Mockus, 1975).

    Where measurement contradicts the prior, which puts the other first, there may have been a busy spell.
    """
    deviation = math.hypot(best.deviation, other.deviation)
    gap = (other.mean - best.mean) / deviation
    density = math.exp(-gap * gap / 2) / math.sqrt(2 * math.pi)
    gain = deviation * (density - gap * 0.5 * math.erfc(gap / math.sqrt(2)))
    if best.listed and other.listed and other.prior < best.prior:
        gain -= SPELL**other.nearby * LATER_SPELL**other.looks * math.expm1(other.prior - best.prior)
    return gain + LUCK[min(other.nearby, len(LUCK) - 1)]
