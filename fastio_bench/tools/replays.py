"""Replays a trace with the tuner: against the oracle, and after one tool became three times slower. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

from fastio.dicts.priors import Rule, rule_for
from fastio.dicts.tuner import Tuner
from fastio_bench.tools.informed import informed
from fastio_bench.tools.replaying import (
    Call,
    Timed,
    expected_over_oracle,
    judged,
    oracle_over_least,
    over_oracle,
    replay,
    share_alike,
    share_best,
    slowed,
    timed,
)
from fastio_bench.tools.trace import Row, by_work, context

ORDERS = 8
BEGINNINGS = 4  # replays in the recorded order from other starting points: busy phases stay together
WARM_UP = 100  # calls of each work: a dictionary learns each work separately
FACTOR = 3.0
RECOVERY = 50  # calls
ALL = "all together"


@dataclass(frozen=True, slots=True)
class Reached:
    """The result of choosing at one work: ``total`` time over the oracle's, and the share of calls on the best tool.

    ``total`` is by expected times, ``raw`` by actual ones, with the luck of each call. ``low`` and ``high`` are the
    least and the most ``total`` of any order of the calls. ``share`` leaves the warm-up out, and is None if nothing is
    left. ``alike`` is that share, with tools that the timings cannot distinguish from the best counted as best.
    ``lucky`` is the oracle's total over that of the fastest tool of each call. ``alone``: the ``total`` of each tool
    used alone.
    """

    work: str
    calls: int
    total: float
    raw: float
    low: float
    high: float
    share: float | None
    alike: float | None
    lucky: float
    alone: dict[str, float]


@dataclass(frozen=True, slots=True)
class Recovered:
    """After ``tool`` became slower: the total over the new oracle's from 50 calls later on, and without the change.

    ``told`` is the total of the learner that gets every tool's time (:func:`fastio_bench.tools.informed.informed`) and
    knows the change from the first call. None if the trace ends before.
    """

    work: str
    tool: str
    after: float | None
    undisturbed: float | None
    told: float | None


def replays(rows: Sequence[Row], rules: Sequence[Rule], orders: int = ORDERS) -> list[Reached]:
    """The tuner's results on each work of a trace, started from the shipped rules.

    The last row is all works together.
    """
    return _every_work(rows, orders, lambda work, calls: replay(calls, Tuner(rule_for(rules, context(work, 1)))))


def bounds(rows: Sequence[Row], orders: int = ORDERS) -> list[Reached]:
    """The informed learner's results on the same calls and orders: :func:`fastio_bench.tools.informed.informed`."""
    return _every_work(rows, orders, lambda _, calls: judged(calls, informed(calls)))


def lived(rows: Sequence[Row], own: str, chosen: Sequence[str]) -> tuple[list[Reached], list[str]]:
    """The results of ``own``, whose times are in the rows beside the tools'; ``chosen`` has its tool for each row.

    Also returns remarks on calls without a comparison: all other tools had failed, or the chosen one when used alone.
    """
    places: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(row.work, []).append(place)
    found, left_out = list[Reached](), list[str]()
    every, everything, late = list[Timed](), list[Call](), list[Call]()
    for work, at in places.items():
        others = {place: {tool: took for tool, took in rows[place].seconds.items() if tool != own} for place in at}
        beside = [place for place in at if others[place]]
        known = zip(beside, timed([rows[place]._replace(seconds=others[place]) for place in beside]), strict=True)
        calls = {place: call for place, call in known if chosen[place] in call.seconds}
        if len(calls) < len(at):
            why = f"every tool but {own} had failed there, or {own} used one that failed by itself"
            left_out.append(f"{work}: {len(at) - len(calls):,} of {len(at):,} calls are held against nothing: {why}")
        if not calls:
            continue
        took = [rows[place].seconds[own] for place in calls]
        run = judged(calls.values(), [chosen[place] for place in calls], took)
        after = [call for number, call in zip(map(at.index, calls), run, strict=True) if number >= WARM_UP]
        found.append(_reached(work, [run], list(calls.values()), [after]))
        every, everything, late = [*every, *calls.values()], everything + run, late + after
    if len(found) > 1:
        found.append(_reached(ALL, [everything], every, [late]))
    return found, left_out


def lived_bounds(rows: Sequence[Row], own: str) -> list[Reached]:
    """As :func:`bounds`, for live rows, in the order of ``own``'s calls."""
    others = [row._replace(seconds={tool: took for tool, took in row.seconds.items() if tool != own}) for row in rows]
    return bounds([row for row in others if row.seconds], orders=1)


def recoveries(rows: Sequence[Row], rules: Sequence[Rule], orders: int = ORDERS) -> list[Recovered]:
    """The recoveries at each work, after the tool with most of the oracle's time became three times slower halfway."""
    found = []
    for work, own in by_work(rows).items():
        calls, rule = timed(own), rule_for(rules, context(work, 1))
        start = len(calls) // 2
        tool = _leading(calls)
        if start + RECOVERY >= len(calls):
            found.append(Recovered(work, tool, None, None, None))
            continue
        after, undisturbed, told = [], [], []
        for order in range(orders):
            usual = ordered(calls, order)
            changed = slowed(usual, tool, FACTOR, start)
            after.append(expected_over_oracle(replay(changed, Tuner(rule))[start + RECOVERY :]))
            undisturbed.append(expected_over_oracle(replay(usual, Tuner(rule))[start + RECOVERY :]))
            always = slowed(usual, tool, FACTOR, 0)
            told.append(expected_over_oracle(judged(always, informed(always))[start + RECOVERY :]))
        found.append(Recovered(work, tool, mean(after), mean(undisturbed), mean(told)))
    return found


def ordered(calls: Sequence[Timed], order: int) -> list[Timed]:
    """The calls in the recorded order, from the first or a later start, or shuffled."""
    if order >= BEGINNINGS:
        return random.Random(order).sample(list(calls), len(calls))
    start = order * len(calls) // BEGINNINGS
    return [*calls[start:], *calls[:start]]


def _every_work(
    rows: Sequence[Row], orders: int, choosing: Callable[[str, Sequence[Timed]], list[Call]]
) -> list[Reached]:
    works = {work: timed(own) for work, own in by_work(rows).items()}
    runs = {work: [choosing(work, ordered(calls, n)) for n in range(orders)] for work, calls in works.items()}
    found = [_reached(work, own, works[work], [run[WARM_UP:] for run in own]) for work, own in runs.items()]
    if len(found) > 1:
        together = [[call for own in runs.values() for call in own[order]] for order in range(orders)]
        every = [call for calls in works.values() for call in calls]
        late = [[call for own in runs.values() for call in own[order][WARM_UP:]] for order in range(orders)]
        found.append(_reached(ALL, together, every, late))
    return found


def _reached(
    work: str, runs: Sequence[Sequence[Call]], calls: Sequence[Timed], late: Sequence[Sequence[Call]]
) -> Reached:
    """``late`` are the runs without their warm-up."""
    totals = [expected_over_oracle(run) for run in runs]
    tools = [tool for tool in calls[0].seconds if all(tool in call.seconds for call in calls)]
    alone = {tool: expected_over_oracle(judged(calls, [tool] * len(calls))) for tool in tools}
    return Reached(
        work,
        len(calls),
        mean(totals),
        mean(over_oracle(run) for run in runs),
        min(totals),
        max(totals),
        mean(map(share_best, late)) if all(late) else None,
        mean(map(share_alike, late)) if all(late) else None,
        oracle_over_least(runs[0]),
        alone,
    )


def _leading(calls: Sequence[Timed]) -> str:
    spent: dict[str, float] = {}
    for call in judged(calls, [next(iter(call.seconds)) for call in calls]):
        spent[call.oracle] = spent.get(call.oracle, 0.0) + call.oracle_expected
    return max(spent, key=spent.__getitem__)
