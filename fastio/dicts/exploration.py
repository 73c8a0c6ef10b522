"""When to try another tool than the best: what a try may cost is weighed against what it may save.

A tool is tried again in a band of sizes when the share of the time since that it is expected to save (the expected
improvement of Mockus, 1975) is several times what the try costs. All tries together get a small share of the time. So
they happen at cheap sizes first, and what they cost is bounded, however wrong the expectations are. A tool that became
slower has a budget of its own, for it may be as fast as before again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fastio.dicts.choice import Plan
from fastio.dicts.tool_record import BLANK, Budget, ToolRecord, Try

TRIES, MOST_TRIES = 0.005, 4.0  # share of the time for all tries, and usual calls to begin with
FIRST_TRIES = 1.5  # usual calls at once for each tool that was not measured near a size yet
PATIENCE = 6.0  # in the time until it is tried again, a tool must be expected to save so many times what a try costs
LUCK = (0.03, 0.03, 0.01)  # expected besides, as a share of a call, where so few times are known: they may be outliers
UNLIKELY = 0.0005  # the least share of the time for trying a tool
HOPE = 1.5  # deviations by which a tool that became slower may be faster than it is expected to be as before
BAND = 8  # buckets, two octaves: a tool is tried again in each
MOST_COST, LEAST_COST = 3.0, 0.02  # of the best tool's time: what a try is taken to cost
TRY_SECONDS = 1e-4  # what a try costs besides
USUAL_CALLS = 200  # window of the usual call's time
PENDING_CALLS = 16  # a try whose time is not told is given up after so many calls


@dataclass(slots=True)
class Exploration:
    """The time spent in one context, and what tries may take of it.

    ``spent``: seconds of all calls. ``usual``: the mean of the last ones. ``tries``: the budget for tools but those
    that became slower.
    """

    spent: float = 0.0
    usual: float = 0.0
    tries: Budget = field(default_factory=lambda: Budget(TRIES, credit=MOST_TRIES))
    _calls: int = 0

    def count(self, seconds: float) -> None:
        """A call took so long."""
        self._calls = min(self._calls + 1, USUAL_CALLS)
        self.spent += seconds
        self.usual += (seconds - self.usual) / self._calls

    def next_try(self, plan: Plan, records: Mapping[str, ToolRecord], call: int) -> tuple[Try | None, float]:
        """The tool to try instead of the plan's best, if any, and else the seconds at which one may be due."""
        if not self._calls:
            return None, 0.0
        found, most, due = None, -math.inf, math.inf
        for other in plan.usable[1:]:
            record, gap = records.get(other.tool, BLANK), other.mean - plan.usable[0].mean
            alike = gap < 0 and other.known and not other.slowdown  # it is equal in time, and works the CPU more
            if alike or (record.tried is not None and call - record.tried.call < PENDING_CALLS):
                continue
            excess = max(math.expm1(min(gap + 0.5 * other.informative**2, 8.0)), LEAST_COST)
            cost = TRY_SECONDS + plan.seconds * (excess if other.known else min(excess, MOST_COST))
            gain = _expected_improvement(gap, other.informative)
            if other.slowdown > 0 and other.slowdown + HOPE * other.informative > gap:
                budget, gain = record.recovery, math.inf
                at = budget.due(cost, self.usual)
            else:
                gain += LUCK[other.nearby] if other.nearby < len(LUCK) and not plan.first else 0.0
                begun = record.last_used.get(plan.bucket // BAND, 0.0)
                own = Budget(max(gain / PATIENCE, UNLIKELY), begun, credit=0.0 if other.known else FIRST_TRIES)
                budget = self.tries
                at = max(own.due(cost, self.usual), budget.due(cost, self.usual))
            if self.spent < at:
                due = min(due, at)
            elif gain > most:
                found, most = Try(other, call, plan.seconds, budget), gain
        return found, due

    def pay(self, record: ToolRecord, tried: Try, seconds: float) -> None:
        """Charge what a try took beyond the best tool to the budget that it came from."""
        most = MOST_COST * max(tried.seconds, self.usual)
        tried.budget.paid += TRY_SECONDS + max(min(seconds - tried.seconds, most), 0.0)
        record.tried = None


def _expected_improvement(gap: float, deviation: float) -> float:
    """By how much a normal variable with that mean and deviation is expected to be below 0 (Mockus, 1975)."""
    if deviation <= 0:
        return max(-gap, 0.0)
    z = gap / deviation
    return deviation * math.exp(-0.5 * z * z) / math.sqrt(math.tau) - gap * 0.5 * math.erfc(z / math.sqrt(2))
