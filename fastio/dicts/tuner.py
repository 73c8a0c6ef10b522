"""The tuner of one context: chooses tools, and learns their times while they are used.

After the Fastensor paper, section 4 (algorithms 1 and 2, figure 4), with times learned from every transfer instead of
one cold time per tool, and every size answered from the sizes around it. Total time is minimised:

- The tool with the least expected time is used (:class:`fastio.dicts.cost_model.CostModel`).
- A tool that may be faster is tried if a budget allows it (:class:`fastio.dicts.exploration.Exploration`).
- A tool that became slower (:class:`fastio.dicts.change_detection.ChangeDetector`), or may have, is tried again out of
  a budget of its own, for it may be as fast as before again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fastio.dicts import constants
from fastio.dicts.choice import FIRST_CALLS, MEASURED, NEARBY, PRIOR, UNKNOWN, Choice, Opinion, Plan
from fastio.dicts.cost_model import CostModel, Prediction
from fastio.dicts.exploration import Exploration
from fastio.dicts.priors import NOTHING, Rule
from fastio.dicts.sizes import SHAPES, bucket_nbytes, bucket_of, shape
from fastio.dicts.tool_record import BLANK, Samples, ToolRecord, median

LEAST_SECONDS = 1e-9
MOST_TOOLS, MOST_PLANS = 64, 1024


class Tuner:
    """Learns one context, from a rule's prior on. Not thread-safe; a :class:`Dictionary` is.

    ``choose`` a tool, then report how long it took (``observe``) or why it failed (``fail``). Sizes are bytes, times
    seconds. ``records``: the record of each tool. ``best``: the best tool of a bucket, as a file names it.
    """

    def __init__(self, rule: Rule = NOTHING) -> None:
        self.rule = rule
        self.best: dict[int, str] = {}
        self.records: dict[str, ToolRecord] = {}
        self.calls = 0
        self._model = CostModel(rule.prior)
        self._exploration = Exploration()
        self._plans: dict[tuple[int, tuple[str, ...]], Plan] = {}
        self._asked: dict[tuple[int, tuple[str, ...]], Plan] = {}  # plans that only `times` uses
        self._expected: dict[tuple[str, int], float] = {}  # of the best tools of the plans in use, if measured
        self._waiting: dict[tuple[str, int], list[float]] = {}
        self._passed = 0  # observed calls that the model does not count yet
        self._age = 0  # calls of choose and observe together

    def adopt(self, rule: Rule) -> None:
        """Take another rule's prior, and learn the stored times again."""
        self.rule = rule
        self._model = CostModel(rule.prior)
        self._drop_plans()
        for tool, record in self.records.items():
            for bucket, cell in record.samples.items():
                self._restore(tool, record, bucket, cell)

    def learn_from_other(self, other: Tuner) -> None:
        """Learn the stored times of another process, of tools and sizes that this one has no times of."""
        for tool, theirs in other.records.items():
            for bucket, cell in theirs.samples.items():
                mine = self.record(tool).cell(bucket)
                if mine.values or mine.firsts or not (cell.values or cell.firsts):
                    continue
                mine.values, mine.firsts = list(cell.values), list(cell.firsts)
                self._learn_waiting()
                self._restore(tool, self.record(tool), bucket, mine)
                self._drop_plans()

    def choose(self, nbytes: float, candidates: Sequence[str], *, first: bool = False) -> Choice:
        """The tool to use for a transfer of ``nbytes``, out of at least one candidate; ValueError if there is none.

        Candidates are in the order of the CPU time that they take, least first: of tools that are equal in time, the
        first is used for large transfers. ``first``: it is the process's first transfer, by any tool.
        """
        bucket, tools = bucket_of(nbytes), tuple(candidates)
        self.calls += 1
        self._age += 1
        plan = None if first else self._plans.get((bucket, tools))
        if plan is None or self._age > plan.until:
            self._learn_waiting()
            plan = self._plan(bucket, tools, first)
            if not first:
                if len(self._plans) >= MOST_PLANS:
                    self._drop_plans()
                self._plans[bucket, tools] = plan
                if plan.usable[0].known:
                    self._expected[plan.choice.tool, bucket] = plan.usable[0].mean
        if self._exploration.spent < plan.due:
            return plan.choice
        tried, plan.due = self._exploration.next_try(plan, self.records, self.calls)
        if tried is not None:
            self.record(tried.opinion.tool).tried = tried
        return plan.choice if tried is None else plan.choice_of(tried.opinion)

    def observe(self, nbytes: float, tool: str, seconds: float, *, first: bool = False) -> None:
        """Learn the seconds of a transfer. ``first`` marks the tool's first call in its process: warm-up.

        Most times agree with the plan in use. To save time, they wait, and their mean is learned: after 32 calls, or
        before anything else is learned or planned.
        """
        if not math.isfinite(seconds):
            return
        seconds, bucket, record = max(seconds, LEAST_SECONDS), bucket_of(nbytes), self.record(tool)
        value = math.log(seconds) - shape(nbytes)
        self._exploration.count(seconds)
        record.used, record.failure = True, None
        record.last_used[bucket // constants.BAND] = self._exploration.spent
        cell = record.cell(bucket)
        cell.add(value + SHAPES[bucket], first)
        self._passed += 1
        self._age += 1
        expected = self._expected.get((tool, bucket))
        if expected is not None and record.tried is None and abs(value - expected) < constants.AGREES and not first:
            self._waiting.setdefault((tool, bucket), []).append(value)
            if self._passed >= constants.MOST_WAITING:
                self._learn_waiting()
            return
        self._learn_waiting()
        news = first or record.tried is not None or len(cell.values) <= 1
        if record.tried is not None:
            self._exploration.pay(record, record.tried, seconds)
        if first:
            seen, later = (self._model.predict(tool, bucket, value, first=one) for one in (True, False))
            if _is_fast(seen, constants.FIRST_NOISE**2) or _is_fast(later, record.detector.noise**2):
                self._sped_up(seen, constants.FIRST_NOISE**2)
                if not cell.firsts:
                    cell.add(value + SHAPES[bucket], True)
            else:
                self._model.update(seen, constants.FIRST_NOISE**2)
        else:
            news = self._learn(tool, bucket, value) > constants.MOVED or news
        if news:
            self._drop_plans()

    def fail(self, tool: str, why: str) -> None:
        """Avoid a tool that refused or failed. It is tried again after 256 calls, later after each further failure."""
        record = self.record(tool)
        record.tried = None
        record.fail(why, self.calls)
        self._drop_plans()

    def renew(self) -> None:
        """Add uncertainty to all that was measured, and drop the times, so that all tools are measured again."""
        self._model.renew(self.records)
        self._exploration.tries.paid = min(self._exploration.tries.paid, constants.TRIES * self._exploration.spent)
        self._drop_plans()
        for record in self.records.values():
            for cell in record.samples.values():
                cell.clear()

    def times(self, nbytes: float, candidates: Sequence[str], *, keep: bool = False) -> dict[str, float]:
        """Seconds expected of each candidate that was measured at or near the size and does not fail, fastest first.

        Changes no choice. They are those of the plan in use: observations that moved a time by less than 10 % may be
        missing, up to 512 of them. ``keep``: a plan that is made for this is used again, and may change later answers.
        """
        key = bucket_of(nbytes), tuple(candidates)
        plan = self._plans.get(key)
        if plan is None or self._age > plan.until:
            plan = self._asked.get(key)
        if plan is None or self._age > plan.until:
            plan = self._plan(*key, False)
            if keep:
                if len(self._asked) >= MOST_PLANS:
                    self._asked.clear()
                self._asked[key] = plan
        return plan.times(nbytes)

    def record(self, tool: str) -> ToolRecord:
        """The record of a tool; made empty if there is none."""
        found = self.records.get(tool)
        if found is None:
            if len(self.records) >= MOST_TOOLS:
                self._model.forget(oldest := next(iter(self.records)))
                del self.records[oldest]
            found = self.records[tool] = ToolRecord()
        return found

    def explain(
        self, nbytes: float, candidates: Sequence[str], first: bool = False
    ) -> tuple[Choice, Sequence[Opinion]]:
        """The choice that would be made, and the opinion of each tool, the best first. Changes nothing."""
        plan = self._plan(bucket_of(nbytes), tuple(candidates), first)
        tried, _ = self._exploration.next_try(plan, self.records, self.calls)
        return plan.choice if tried is None else plan.choice_of(tried.opinion), plan.ranked

    def _plan(self, bucket: int, candidates: tuple[str, ...], first: bool) -> Plan:
        if not candidates:
            raise ValueError("there is no tool to choose from")
        means, covariance = (array.tolist() for array in self._model.expect(candidates, bucket, first))
        opinions = [
            self._opinion(tool, bucket, first, means[at], covariance[at][at]) for at, tool in enumerate(candidates)
        ]
        order = sorted(range(len(opinions)), key=lambda at: opinions[at].mean)
        failing = [at for at in order if self.records.get(candidates[at], BLANK).fails(self.calls)]
        usable = [at for at in order if at not in failing]
        if not usable:
            usable, failing = failing, []
        best = self._preferred(bucket, opinions, usable, covariance)
        for at in usable:
            variance, noise = covariance[at][at], self.records.get(candidates[at], BLANK).detector.noise
            moved = max(variance - covariance[at][best], 0.0) / math.sqrt(variance + noise**2)
            opinions[at] = opinions[at]._replace(informative=moved)
        seconds = opinions[best].seconds(bucket) if self._exploration.usual or opinions[best].known else 0.0
        ranked = [opinions[at] for at in (best, *(at for at in usable if at != best))]
        rest = [opinions[at] for at in failing]
        until, has_prior = self._age + constants.PLAN_AGE, self.rule.prior.lists(candidates[best])
        return Plan(bucket, ranked, rest, opinions[usable[0]], first, seconds, until, has_prior)

    def _preferred(self, bucket: int, opinions: Sequence[Opinion], usable: Sequence[int], covariance: Any) -> int:
        """The tool to use: the fastest, or for a large transfer one that is equal in time and takes less CPU."""
        fastest, nbytes = usable[0], bucket_nbytes(bucket)
        if nbytes < constants.LARGE_NBYTES or not opinions[fastest].known:
            return fastest
        found = fastest
        for at in usable[1:]:
            if opinions[at].known and at < found:
                most = constants.GIVEN_AWAY
                if nbytes < constants.HUGE_NBYTES:
                    variance = covariance[at][at] + covariance[fastest][fastest] - 2 * covariance[at][fastest]
                    most = min(constants.EQUAL, math.sqrt(max(variance, 0.0)))
                if opinions[at].mean - opinions[fastest].mean <= most:
                    found = at
        return found

    def _opinion(self, tool: str, bucket: int, first: bool, mean: float, variance: float) -> Opinion:
        record = self.records.get(tool, BLANK)
        penalty = slowdown = record.detector.penalty
        slowdown += self._slowdown(tool, bucket, record)
        samples, nearby = record.count(bucket)
        source = PRIOR if self.rule.prior.lists(tool) else UNKNOWN
        if nearby or any(cell.firsts for cell in record.samples.values()):
            source = MEASURED if samples else NEARBY if nearby else FIRST_CALLS
        known = nearby > 0 or (first and source == FIRST_CALLS)
        deviation = math.sqrt(max(variance, 0.0))
        return Opinion(tool, mean + penalty, deviation, source, samples, nearby, known, slowdown)

    def _learn(self, tool: str, bucket: int, value: float, calls: int = 1) -> float:
        """Learn the value of a call, or the mean of several; return by how much the expected value moved."""
        record, seen = self.record(tool), self._model.predict(tool, bucket, value)
        detector, noise = record.detector, record.detector.noise**2
        if seen.residual**2 > constants.SURPRISE**2 * (seen.variance + noise) and record.count(bucket)[1] <= 1:
            common = not any(each is not record and each.count(bucket)[1] for each in self.records.values())
            if common or len(record.samples) > 1:  # the tool is known at other sizes
                self._model.bend(tool, bucket, common)
                return abs(self._model.update(self._model.predict(tool, bucket, value), noise))
        doubted = detector.suspicion > 0
        slowed = self._slowdown(tool, bucket, record) > 0
        if detector.detect(seen.residual, seen.variance + noise, slowed):
            if seen.residual > 0:  # remember the old speed while the tool is slower
                record.doubt(self._exploration.spent, self._model.speed(tool))
                residual = min(seen.residual, detector.suspicion or seen.residual)
                self._model.change(seen, residual, noise, constants.CHANGED_LEVEL)
            elif slowed:
                self._model.change(seen, seen.residual, noise, constants.CHANGED_LEVEL)
            else:
                self._sped_up(seen, noise)
                if not (cell := record.cell(bucket)).values:
                    cell.add(value + SHAPES[bucket], False)
            detector.suspicion, moved = 0.0, math.inf
        else:
            moved = self._model.update(seen, noise / calls)
            if detector.suspicion > 0:
                detector.suspicion = max(detector.suspicion - moved, 1e-3)
        if (detector.suspicion > 0) != doubted:
            record.doubt(self._exploration.spent)
            moved = math.inf
        if record.speed_before is not None and self._model.speed(tool) < record.speed_before + constants.RETURNED:
            record.speed_before = None
        return abs(moved)

    def _slowdown(self, tool: str, bucket: int, record: ToolRecord) -> float:
        """By which logarithm a tool is slower than before, or where that is unknown, than the prior has it.

        The latter counts if it is far slower, beside the other measured tools. 0 if it is not slower.
        """
        if record.speed_before is not None:
            return max(self._model.speed(tool) - record.speed_before, 0.0)
        lists = self.rule.prior.lists
        if not record.samples or not lists(tool):
            return 0.0
        excess = {
            one: self._model.excess(one, bucket) for one, its in self.records.items() if its.samples and lists(one)
        }
        beyond = excess[tool] - min(excess.values())
        return beyond if beyond > constants.FAR else 0.0

    def _sped_up(self, seen: Prediction, noise: float) -> None:
        """Learn that a tool is faster than it ever was. The machine is, most likely, so the other tools are too.

        All times were taken while it was slower, some perhaps before that: none is stored any longer.
        """
        self._model.change(seen, seen.residual, noise, constants.SPED_UP_LEVEL)
        if seen.residual < -constants.FAR:
            for record in self.records.values():
                for cell in record.samples.values():
                    cell.clear()

    def _learn_waiting(self) -> None:
        """Count the calls since the last time, and learn the values that wait."""
        if self._passed:
            self._model.walk(self.records, self._passed)
            self._passed = 0
        waiting, self._waiting = self._waiting, {}
        for (tool, bucket), values in waiting.items():
            self._learn(tool, bucket, sum(values) / len(values), len(values))

    def _drop_plans(self) -> None:
        self._plans.clear()
        self._asked.clear()
        self._expected.clear()

    def _restore(self, tool: str, record: ToolRecord, bucket: int, cell: Samples) -> None:
        """Learn the stored times of a cell.

        A first call takes longer than later ones, if anything. Where first calls were faster, the later ones of other
        processes were taken in a busy spell.
        """
        noises = record.detector.noise, constants.FIRST_NOISE
        for values, noise, first in zip((cell.values, cell.firsts), noises, (False, True), strict=True):
            if values:
                least = min(median(values), median(cell.firsts or values))
                seen = self._model.predict(tool, bucket, least - SHAPES[bucket], first)
                self._model.update(seen, noise**2 / len(values), stalls=False)
                for value in values if not self.rule.prior.lists(tool) else ():
                    self._exploration.count(math.exp(min(value, 100.0)))


def _is_fast(seen: Prediction, noise: float) -> bool:
    """Whether a call was so fast that its tool, or the machine, must be faster than expected."""
    return seen.residual < -constants.SURPRISE * math.sqrt(seen.variance + noise)
