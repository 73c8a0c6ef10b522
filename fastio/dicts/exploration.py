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

from fastio.dicts.choice import Plan
from fastio.dicts.tool_record import BLANK, Budget, ToolRecord, Try

TRIES, MOST_TRIES = 0.005, 4.0  # share of the time for all tries, and usual calls to begin with
FIRST_TRIES = 1.5  # usual calls at once for each tool that was not measured near a size yet
ENOUGH_FIRST_CALLS = 2  # of other processes, near a size: the tool counts as measured there
FREE_SECONDS, MOST_SHARE = 0.01, 0.03  # for short calls, and share of this process's time: for tries beside a prior
PAYBACK = 6.0  # the expected savings since the last call must be so many times the cost of a try
FEW_TIMES_GAIN = (0.03, 0.03, 0.01)  # share of a call, added for a tool with 0, 1, 2 times: they may be outliers
LEAST_SHARE = 0.0005  # of the time, for trying one tool
RECOVERY_DEVIATIONS = 1.5  # in favour of a tool that became slower: it is tried if it may then be the best
BAND = 8  # buckets, two octaves: a tool is tried again in each
MOST_COST, LEAST_COST = 3.0, 0.02  # bounds of the cost of a try, over the best tool's time
TRY_SECONDS = 1e-4  # added to the cost of a try
USUAL_CALLS = 200  # window of the usual call's time
PENDING_CALLS = 16  # a try without a time is given up after so many calls


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
    tries: Budget = field(default_factory=lambda: Budget(TRIES, credit=MOST_TRIES))
    _calls: int = 0

    def count(self, seconds: float) -> None:
        """Count a call that took so many seconds."""
        self._calls = min(self._calls + 1, USUAL_CALLS)
        self.spent += seconds
        self.usual += (seconds - self.usual) / self._calls

    def next_try(self, plan: Plan, records: Mapping[str, ToolRecord], call: int) -> tuple[Try | None, float]:
        """The tool to try instead of the plan's best, if one is due; the context's seconds when the next may be due."""
        if not self._calls:
            return None, 0.0
        found, most, due = None, -math.inf, math.inf
        for other in plan.usable[1:]:
            record, gap = records.get(other.tool, BLANK), other.mean - plan.usable[0].mean
            alike = gap < 0 and other.known and not other.slowdown  # equal in time, but takes more CPU
            if alike or (record.tried is not None and call - record.tried.call < PENDING_CALLS):
                continue
            excess = max(math.expm1(min(gap + 0.5 * other.informative**2, 8.0)), LEAST_COST)
            # Processes that call a tool once know its first calls alone, and would each begin with a try of it.
            seen = other.known or record.began(plan.bucket) >= ENOUGH_FIRST_CALLS
            cost = TRY_SECONDS + plan.seconds * (excess if seen else min(excess, MOST_COST))
            gain = _expected_improvement(gap, other.informative)
            if other.slowdown > 0 and other.slowdown + RECOVERY_DEVIATIONS * other.informative > gap:
                budget, gain = record.recovery, math.inf
                at = budget.due(cost, self.usual)
            else:
                gain += FEW_TIMES_GAIN[other.nearby] if other.nearby < len(FEW_TIMES_GAIN) and not plan.first else 0.0
                begun = record.last_used.get(plan.bucket // BAND, 0.0)
                own = Budget(max(gain / PAYBACK, LEAST_SHARE), begun, credit=0.0 if seen else FIRST_TRIES)
                budget = self.tries
                at = max(own.due(cost, self.usual), budget.due(cost, self.usual))
            if plan.has_prior:  # a program may end after a few large calls, and what ships is seldom wrong
                free = FREE_SECONDS if plan.seconds < FREE_SECONDS else 0.0
                at = max(at, (self.paid + cost - free) / MOST_SHARE)
            if self.spent < at:
                due = min(due, at)
            elif gain > most:
                found, most = Try(other, call, plan.seconds, budget), gain
        return found, due

    def pay(self, record: ToolRecord, tried: Try, seconds: float) -> None:
        """Charge the seconds that a try took beyond the best tool's to the budget of the try."""
        most = MOST_COST * max(tried.seconds, self.usual)
        cost = TRY_SECONDS + max(min(seconds - tried.seconds, most), 0.0)
        tried.budget.paid += cost
        self.paid += cost
        record.tried = None


def _expected_improvement(gap: float, deviation: float) -> float:
    """The mean of max(-x, 0) for a normal x with mean ``gap`` (Mockus, 1975)."""
    if deviation <= 0:
        return max(-gap, 0.0)
    z = gap / deviation
    return deviation * math.exp(-0.5 * z * z) / math.sqrt(math.tau) - gap * 0.5 * math.erfc(z / math.sqrt(2))
