"""When to try another tool than the best: the cost of a try is weighed against the time that it may save.

A tool is tried again in a band of sizes when the time that it is expected to have saved since its last call there (the
expected improvement of Mockus, 1975) is several times the cost of the try. All tries together get a small share of the
time. So they happen at cheap sizes first, and their cost is bounded, however wrong the expectations are. A tool that
became slower has a budget of its own, for it may be as fast as before again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from fastio.dicts import constants
from fastio.dicts.choice import Plan
from fastio.dicts.tool_record import BLANK, Budget, ToolRecord, Try


@dataclass(slots=True)
class Exploration:
    """The time spent in one context, and the share of it that tries may take.

    ``spent``: seconds of all calls of this process, and of the stored ones of tools without a prior. ``paid``: of them,
    for tries. ``usual``: mean seconds of the last calls. ``tries``: the budget for all tools except those that became
    slower.
    """

    spent: float = 0.0
    paid: float = 0.0
    usual: float = 0.0
    tries: Budget = field(default_factory=lambda: Budget(constants.TRIES, credit=constants.MOST_TRIES))
    _calls: int = 0

    def count(self, seconds: float) -> None:
        """Count a call that took so many seconds."""
        self._calls = min(self._calls + 1, constants.USUAL_CALLS)
        self.spent += seconds
        self.usual += (seconds - self.usual) / self._calls

    def next_try(self, plan: Plan, records: Mapping[str, ToolRecord], call: int) -> tuple[Try | None, float]:
        """The tool to try instead of the plan's best, if one is due; the context's seconds when the next may be due."""
        if not self._calls:
            return None, 0.0
        found, most, due, few = None, -math.inf, math.inf, constants.FEW_TIMES_GAIN
        for other in plan.usable[1:]:
            record, gap = records.get(other.tool, BLANK), other.mean - plan.usable[0].mean
            alike = gap < 0 and other.known and not other.slowdown  # equal in time, but takes more CPU
            if alike or (record.tried is not None and call - record.tried.call < constants.PENDING_CALLS):
                continue
            excess = max(math.expm1(min(gap + 0.5 * other.informative**2, 8.0)), constants.LEAST_COST)
            # Processes that call a tool once know its first calls alone, and would each begin with a try of it.
            seen = other.known or record.began(plan.bucket) >= constants.ENOUGH_FIRST_CALLS
            cost = constants.TRY_SECONDS + plan.seconds * (excess if seen else min(excess, constants.MOST_COST))
            gain = _expected_improvement(gap, other.informative)
            if other.slowdown > 0 and other.slowdown + constants.RECOVERY_DEVIATIONS * other.informative > gap:
                budget, gain = record.recovery, math.inf
                at = budget.due(cost, self.usual)
            else:
                gain += few[other.nearby] if other.nearby < len(few) and not plan.first else 0.0
                begun = record.last_used.get(plan.bucket // constants.BAND, 0.0)
                own = Budget(max(gain / constants.PAYBACK, 1e-9), begun, credit=0.0 if seen else constants.FIRST_TRIES)
                budget = self.tries
                at = max(own.due(cost, self.usual), budget.due(cost, self.usual))
            if plan.has_prior:  # a program may end after a few large calls, and what ships is seldom wrong
                free = constants.FREE_SECONDS if plan.seconds < constants.FREE_SECONDS else 0.0
                at = max(at, (self.paid + cost - free) / constants.MOST_SHARE)
            if self.spent < at:
                due = min(due, at)
            elif gain > most:
                found, most = Try(other, call, plan.seconds, budget), gain
        return found, due

    def pay(self, record: ToolRecord, tried: Try, seconds: float) -> None:
        """Charge the seconds that a try took beyond the best tool's to the budget of the try."""
        most = constants.MOST_COST * max(tried.seconds, self.usual)
        cost = constants.TRY_SECONDS + max(min(seconds - tried.seconds, most), 0.0)
        tried.budget.paid += cost
        self.paid += cost
        record.tried = None


def _expected_improvement(gap: float, deviation: float) -> float:
    """The mean of max(-x, 0) for a normal x with mean ``gap`` (Mockus, 1975)."""
    if deviation <= 0:
        return max(-gap, 0.0)
    z = gap / deviation
    return deviation * math.exp(-0.5 * z * z) / math.sqrt(math.tau) - gap * 0.5 * math.erfc(z / math.sqrt(2))
