"""Which tool to use, learned while it is used: the tuner of one context. Pure: no clock, no file, no chance.

After the Fastensor paper, section 4 (algorithms 1 and 2, figure 4), with the bests found by samples instead of one cold
time per tool, and every size answered from the sizes around it.
"""

from __future__ import annotations

import math

from fastio._native import bucket_nbytes, shape
from fastio.dicts.context import SHAPE, Choice, bucket_of, describe_nbytes
from fastio.dicts.evidence import estimates
from fastio.dicts.exploration import (
    BUDGET_CALLS,
    BUDGET_SHARE,
    MOST_STAKE,
    Plan,
    costs,
    pick,
    preferred,
    refresh_calls,
)
from fastio.dicts.machine import Machine
from fastio.dicts.priors import NOTHING, Rule
from fastio.dicts.reasons import instead, why
from fastio.dicts.record import BAND, Record

SETTLED_SAMPLES = 4
SETTLED_USES = 16  # calls of a settled bucket between two looks at the evidence
PLAN_CALLS = 512
PENDING_CALLS = 16  # a try that nobody reported on is given up after so many calls
USUAL_CALLS = 200  # window of the usual call's time
MOST_TOOLS = 64
MOST_PLANS = 16  # of one bucket: one for each set of candidates
RENEWAL_DOUBT = 0.5
LEAST_SECONDS = 1e-9
LARGE_NBYTES = 16 << 20  # from here on the bytes are the work, not the call: what it takes of the processor counts


class Tuner:
    """Learns one context. ``choose`` what to use, then tell how long it took (``observe``) or why it failed (``fail``).

    Sizes are bytes, times seconds. Not thread-safe: :class:`fastio.dicts.dictionary.Dictionary` is.
    """

    def __init__(self, rule: Rule = NOTHING) -> None:
        self.rule = rule
        self.calls = 0
        self.records: dict[str, Record] = {}
        self._usual = 0.0
        self._observed = 0
        self._spent = self._paid = 0.0  # seconds: by all calls; by tries, beyond what the best tool would have taken
        self._band_calls: dict[int, int] = {}
        self._machine = Machine(self.records)
        self._plans: dict[int, dict[tuple[str, ...], Plan]] = {}

    def choose(self, nbytes: int, candidates: tuple[str, ...]) -> Choice:
        """The tool to use for a transfer of that size, out of at least one candidate.

        The candidates are in the order in which they work the processor, least first. Of tools that are equal in time,
        by all that is known, the first of them moves what is large (from 16 MiB).
        """
        bucket = bucket_of(nbytes)
        band = bucket // BAND
        self.calls += 1
        call = self._band_calls[band] = self._band_calls.get(band, 0) + 1
        plan = self.plan(bucket, candidates)
        plan.uses -= 1
        choice = plan.choice
        asked = self._machine.ask(plan, lambda tool: self._may_be_tried(self.record(tool)))
        if asked is not None:
            self._try(plan, asked[0])
            return instead(choice, *asked)
        if choice.exploring:
            self._try(plan, choice.tool)
            return choice
        for tool, calls in plan.refresh:
            record = self.record(tool)
            due = call - record.last.get(band, 0) >= calls * record.backoff
            if due and self._may_be_tried(record) and self._pays(plan, tool):
                record.last[band] = call
                record.looks += 1
                self._try(plan, tool)
                size = describe_nbytes(bucket_nbytes(bucket))
                return instead(choice, tool, f"looking again at {tool} near {size}, after {choice.tool}")
        return choice

    def observe(self, nbytes: int, tool: str, seconds: float, *, first: bool = False) -> None:
        """Learn that a transfer took so long. ``first`` marks the tool's first call in its process: warm-up."""
        if not math.isfinite(seconds):
            return
        seconds = max(seconds, LEAST_SECONDS)
        bucket = bucket_of(nbytes)
        record = self.record(tool)
        value = math.log(seconds) - shape(nbytes) + SHAPE[bucket]
        self._spent += seconds
        self._observed = min(self._observed + 1, USUAL_CALLS)
        self._usual += (seconds - self._usual) / self._observed
        record.pending = -PENDING_CALLS
        if record.stake is not None:
            thought, best = record.stake
            self._paid += min(max(seconds - best, 0.0) - thought, MOST_STAKE * self._usual)
            record.stake = None
        record.failure = None
        record.last[bucket // BAND] = self._band_calls.get(bucket // BAND, 0)
        if first:
            record.curve.cell(bucket).add_first(value)
            self._outdate(bucket, tool)
            return
        expected = self._expected(bucket, tool)
        if expected is not None:
            noise = record.curve.noise
            if self._machine.hear(bucket, tool, value - expected[0], expected[1] + noise * noise):
                self._plans.clear()
                return
        record.curve.add(bucket, value)
        self._outdate(bucket, tool)
        before = record.shift
        if expected is not None and record.hear(bucket, value, *expected):
            self._machine.changed(tool, record.shift - before)
            self._plans.clear()

    def fail(self, tool: str, reason: str) -> None:
        """Avoid a tool that refused or failed; it is tried again much later."""
        record = self.record(tool)
        record.pending = -PENDING_CALLS
        self._machine.forget(tool)
        record.fail(self.calls, reason)
        self._plans.clear()

    def renew(self) -> None:
        """Doubt everything measured so far, so that it is measured again."""
        for record in self.records.values():
            for _, cell in record.curve.cells():
                if len(cell):
                    cell.shift(0.0, RENEWAL_DOUBT)
        self._plans.clear()

    def plan(self, bucket: int, candidates: tuple[str, ...]) -> Plan:
        """What is to be done at a bucket, as worked out lately."""
        plans = self._plans.setdefault(bucket, {})
        plan = plans.get(candidates)
        if plan is None or plan.uses <= 0 or plan.until < self.calls:
            if len(plans) >= MOST_PLANS:
                plans.clear()
            plan = plans[candidates] = self.make_plan(bucket, candidates)
        return plan

    def times(self, nbytes: int, candidates: tuple[str, ...]) -> dict[str, float]:
        """Seconds expected of each candidate that was measured at or near the size and does not fail, fastest first."""
        level = shape(nbytes)
        ranked = self.plan(bucket_of(nbytes), candidates).ranked
        known = [e for e in ranked if e.known and not self.record(e.tool).failing(self.calls)]
        return {e.tool: math.exp(e.mean + level) for e in sorted(known, key=lambda estimate: estimate.mean)}

    def record(self, tool: str) -> Record:
        """What is known of a tool, made empty where nothing is."""
        record = self.records.get(tool)
        if record is None:
            if len(self.records) >= MOST_TOOLS:
                del self.records[next(iter(self.records))]
            record = self.records[tool] = Record()
        return record

    def make_plan(self, bucket: int, candidates: tuple[str, ...]) -> Plan:
        """What is to be done at a bucket: the beliefs, the choice they lead to, what is to be looked at again."""
        ranked = estimates(self.records, self.rule, bucket, candidates)
        failing = [estimate for estimate in ranked if self.record(estimate.tool).failing(self.calls)]
        usable = [estimate for estimate in ranked if estimate not in failing] or failing
        ranked = usable if usable is failing else usable + failing
        fastest = usable[0]
        large = bucket_nbytes(bucket) >= LARGE_NBYTES
        best = preferred(usable, candidates) if large else fastest
        if best is not fastest:
            usable = [best, *(estimate for estimate in usable if estimate is not best)]
            ranked = [best, *(estimate for estimate in ranked if estimate is not best)]
        seconds = best.seconds(bucket) if self._observed else 0.0
        dearness = seconds / self._usual if self._usual > 0 else 1.0
        prices = costs(usable, seconds)
        idle = [e for e in usable[1:] if self._may_be_tried(self.record(e.tool)) and self._affords(prices[e.tool])]
        chosen = pick(best, idle, dearness, large)
        order = (chosen.tool, *(estimate.tool for estimate in ranked if estimate is not chosen))
        choice = Choice(chosen.tool, why(bucket, chosen, usable, fastest), chosen is not best, order)
        settled = SETTLED_USES if best.samples >= SETTLED_SAMPLES else min(1 + best.nearby // 64, SETTLED_USES)
        return Plan(
            ranked,
            choice,
            refresh_calls(usable, large),
            seconds,
            prices,
            settled if chosen is best else 1,
            self.calls + PLAN_CALLS,
        )

    def _expected(self, bucket: int, tool: str) -> tuple[float, float] | None:
        """Mean and variance of what the tool takes at a bucket: its own samples there, else what a plan believed."""
        curve = self.records[tool].curve
        cell = curve.find(bucket)
        if cell is not None and len(cell) >= SETTLED_SAMPLES - 1 and not cell.doubt:
            return cell.median, cell.variance(curve.noise)
        for plan in self._plans.get(bucket, {}).values():
            for estimate in plan.ranked:
                if estimate.tool == tool and estimate.known:
                    return estimate.mean + SHAPE[bucket], estimate.deviation**2
        return None

    def _outdate(self, bucket: int, tool: str) -> None:
        """Have the plans of a bucket made anew that what was learned of the tool bears upon."""
        for plan in self._plans.get(bucket, {}).values():
            if plan.choice.exploring or plan.choice.tool != tool:
                plan.uses = 0

    def _affords(self, cost: float) -> bool:
        """Whether the budget for trying tools has so many seconds left."""
        return cost <= BUDGET_CALLS * self._usual + BUDGET_SHARE * self._spent - self._paid

    def _pays(self, plan: Plan, tool: str) -> bool:
        """Whether a tool may be looked at now: out of the budget, or unmeasured and at a call no dearer than usual."""
        return self._affords(plan.costs[tool]) or (
            not self.records[tool].curve.measured and plan.seconds <= self._usual
        )

    def _try(self, plan: Plan, tool: str) -> None:
        """A tool is handed out to be tried: charge what that should cost, until it is known what it did."""
        record = self.record(tool)
        record.pending = self.calls
        cost = plan.costs.get(tool, 0.0)
        record.stake = cost, plan.seconds
        self._paid += cost
        self._machine.tried(tool, plan.ranked[0].tool)

    def _may_be_tried(self, record: Record) -> bool:
        return self.calls - record.pending >= PENDING_CALLS and not record.failing(self.calls)
