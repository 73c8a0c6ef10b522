"""What to try, given what is believed: the price of a look against what it may bring. Pure.

A tool is tried while its time may, within the confidence, be below that of every other (upper confidence bounds: Auer,
Cesa-Bianchi and Fischer, 2002); later it is looked at now and then, the more seldom the more it costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fastio.dicts.context import Choice
from fastio.dicts.evidence import Estimate

CONFIDENCE = 2.0  # deviations
TIE = 0.03  # logarithm: less than this is not worth a try
CAUTION = 0.7  # how quickly the confidence shrinks at calls dearer than the usual one
UNKNOWN_CALLS = 5  # a tool not measured near here is looked at after so many calls, whatever the prior says
LEAST_CALLS = 8
FIRST_REFRESH, LAST_REFRESH = 64, 1024  # calls
RUNNER_UP_SHARE, OTHERS_SHARE = 0.006, 0.0025  # of the time, for looking again at tools that are slower
PATIENCE = 3.0  # a look must pay for itself so many times over
LUCK = (0.03, 0.03, 0.01, 0.0005)  # expected gain of a look at a tool with 0, 1, 2, more samples: they may be outliers
LEAST_EXCESS = 0.02


@dataclass(slots=True)
class Plan:
    """What to do at one bucket, until something is learned: ``choice``, and each other tool to look at again.

    ``refresh`` pairs a tool with the number of calls after which it is due. ``uses`` and ``until`` (a call) bound the
    plan's life.
    """

    ranked: list[Estimate]
    choice: Choice
    refresh: list[tuple[str, float]]
    uses: int = 1
    until: int = 0


def pick(best: Estimate, others: Sequence[Estimate], dearness: float) -> Estimate:
    """The estimate to act on: the lowest bound of ``best`` and the ``others`` that may be tried.

    ``dearness`` is the expected time over the usual call's; a dear call is a bad moment for experiments, since sizes
    nearby teach as much for less.
    """
    chosen = best
    confidence = CONFIDENCE
    if dearness > 1 and best.known:
        confidence /= 1 + CAUTION * math.log2(dearness)
    lowest = best.mean - confidence * best.deviation - TIE
    for estimate in others:
        bound = estimate.mean - confidence * estimate.deviation
        if bound < lowest:
            lowest, chosen = bound, estimate
    return chosen


def refresh_calls(ranked: Sequence[Estimate], dearness: float) -> list[tuple[str, float]]:
    """After how many calls to look again at each tool but the best."""
    best = ranked[0]
    result = []
    for place, estimate in enumerate(ranked[1:]):
        calls = float(UNKNOWN_CALLS)
        if estimate.known:
            excess = max(math.expm1(min(estimate.mean - best.mean, 10.0)), LEAST_EXCESS)
            share = OTHERS_SHARE if place else RUNNER_UP_SHARE
            drift = min(max(excess / share, FIRST_REFRESH), LAST_REFRESH)
            calls = max(LEAST_CALLS, min(drift, PATIENCE * excess / _expected_gain(best, estimate)))
        result.append((estimate.tool, calls * max(1.0, dearness)))
    return result


def _expected_gain(best: Estimate, other: Estimate) -> float:
    """What knowing ``other`` exactly is expected to save, as a share of a call (expected improvement: Mockus, 1975)."""
    deviation = math.hypot(best.deviation, other.deviation)
    gap = (other.mean - best.mean) / deviation
    density = math.exp(-gap * gap / 2) / math.sqrt(2 * math.pi)
    gain = deviation * (density - gap * 0.5 * math.erfc(gap / math.sqrt(2)))
    return gain + LUCK[min(other.nearby, len(LUCK) - 1)]
