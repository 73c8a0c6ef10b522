"""Replays recorded timings as a user meets them: steady, from nothing, a tool or the machine changes, short programs.

``python -m fastio_bench.tools.scenarios [--sensitivity] [TRACES]`` prints, for each scenario, the dictionary's total
time and the best single tool's, both over the oracle's; with ``--sensitivity`` also how much longer the dictionary
takes with each number of :mod:`fastio.dicts.constants` halved and doubled. By default it replays the trace that ships.
Timings are RECORDED; slow spells and first calls are made of them by factors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from fastio.dicts import RDic, WDic, WRDic, constants
from fastio.dicts.context import Context
from fastio.dicts.json_form import parse_tuners, plain_tuners
from fastio.dicts.priors import NOTHING, Prior, Rule, rule_for
from fastio.dicts.shipped import shipped_rules
from fastio.dicts.tuner import Tuner
from fastio_bench.tools import trace
from fastio_bench.tools.replaying import Timed, timed
from fastio_bench.tools.trace import Row

FACTOR = 3.0  # a tool that becomes slower; the machine
BUSY = 4.5  # all tools, in the spell in which a dictionary is filled
SPELL, EVERY = 12, 100  # calls in a busy spell, and from one to the next
FIRST = {"uring": 1.5, "posix": 1.9, "numpy": 2.2, "torch": 2.6}  # what a first call takes, over later ones
FIRST_OTHERS = 3.0
ONE_CALL = 100  # programs of one call

Slower = Callable[[int, str], float]


class Outcome(NamedTuple):
    """Seconds of one replay: the dictionary's, those of the best single tool, and the oracle's."""

    ours: float
    single: float
    oracle: float


def outcomes(rows: Sequence[Row]) -> Iterator[tuple[str, str, Outcome]]:
    """Each scenario's name, the work and the outcome, for every work of a trace."""
    works = {work: timed(own) for work, own in trace.by_work(rows).items()}
    for work, calls in works.items():
        rule = rule_for(shipped_rules(), trace.context(work, 1))
        name = "WDic" if "save" in work else "RDic"
        for scenario, outcome in _of_work(calls, rule):
            yield f"{name}: {scenario}", work, outcome
    if {"pt save", "pt warm load"} <= works.keys():
        yield "WRDic: steady", "pt", _sums(works["pt save"], works["pt warm load"])


def _of_work(calls: Sequence[Timed], rule: Rule) -> Iterator[tuple[str, Outcome]]:
    third, half, ranked = len(calls) // 3, len(calls) // 2, _ranked(calls)
    best, second = ranked[0], ranked[1]

    def late(tool: str, factor: float) -> Slower:
        return lambda call, one: factor if one == tool and call >= half else 1.0

    def between(factor: float, *tools: str) -> Slower:
        return lambda call, one: factor if one in tools and third <= call < 2 * third else 1.0

    yield "steady", _replayed(calls, rule)
    yield "nothing known before", _replayed(calls, NOTHING)
    yield "what is known is reversed", _replayed(calls, _reversed(calls))
    yield "the best tool slower for good", _replayed(calls, rule, late(best, FACTOR), half)
    yield "the best tool slower for a while", _replayed(calls, rule, between(FACTOR, best), third)
    yield "another tool faster for good", _replayed(calls, rule, late(second, 1 / FACTOR), half)
    yield "the machine slower for a while", _replayed(calls, rule, between(FACTOR, *ranked), third)
    spells: Slower = lambda call, _: FACTOR if call % EVERY < SPELL else 1.0  # noqa: E731
    yield "busy spells", _replayed(calls, rule, spells)
    yield "first calls: programs of one call", _processes(calls[:ONE_CALL], rule, 1)
    yield "first calls: programs of 20 calls", _processes(calls, rule, 20)
    busy: Slower = lambda call, _: BUSY if call < third else 1.0  # noqa: E731
    yield "filled by a busy machine, all tools", _processes(calls, rule, 20, busy, third)
    one: Slower = lambda call, tool: BUSY if call < third and tool == best else 1.0  # noqa: E731
    yield "filled by a busy machine, the best tool", _processes(calls, rule, 20, one, third)


def _replayed(calls: Sequence[Timed], rule: Rule, slower: Slower | None = None, start: int = 0) -> Outcome:
    """One program; the seconds count from call ``start`` on."""
    changed, tuner, warm, took = _changed(calls, slower), Tuner(rule), set[str](), []
    for call in changed:
        tool = tuner.choose(call.nbytes, tuple(call.seconds)).tool
        tuner.observe(call.nbytes, tool, call.seconds[tool], first=tool not in warm)
        warm.add(tool)
        took.append(call.expected[tool])
    return _outcome(sum(took[start:]), [call.expected for call in changed[start:]])


def _processes(
    calls: Sequence[Timed], rule: Rule, length: int, slower: Slower | None = None, start: int = 0
) -> Outcome:
    """Programs of ``length`` calls, each of which begins with what those before it wrote."""
    context, tuner, took, expected = (
        Context("load", "pt", "cpu"),
        Tuner(rule),
        list[float](),
        list[Mapping[str, float]](),
    )
    warm: set[str] = set()
    for number, call in enumerate(_changed(calls, slower)):
        if number % length == 0 and number:
            (tuner,) = parse_tuners(plain_tuners({context: tuner})).values()
            tuner.adopt(rule)
            warm = set()
        factors = {tool: 1.0 if tool in warm else FIRST.get(tool, FIRST_OTHERS) for tool in call.seconds}
        tool = tuner.choose(call.nbytes, tuple(call.seconds), first=not warm).tool
        tuner.observe(call.nbytes, tool, call.seconds[tool] * factors[tool], first=tool not in warm)
        took.append(call.expected[tool] * (factors[tool] if not warm else 1.0))
        expected.append({one: seconds * (factors[one] if not warm else 1.0) for one, seconds in call.expected.items()})
        warm.add(tool)
    return _outcome(sum(took[start:]), expected[start:])


def _sums(saves: Sequence[Timed], loads: Sequence[Timed]) -> Outcome:
    """Every size saved and loaded once, by a WRDic."""
    both, took, expected = WRDic(WDic(), RDic()), 0.0, []
    for save, load in zip(saves, loads, strict=False):
        tools = tuple(tool for tool in save.seconds if tool in load.seconds)
        for call, context in ((save, trace.context("pt save", 1)), (load, trace.context("pt warm load", 1))):
            tool = both.choose(context, call.nbytes, tools).tool
            both.observe(context, call.nbytes, tool, call.seconds[tool])
            took += call.expected[tool]
        expected.append({tool: save.expected[tool] + load.expected[tool] for tool in tools})
    return _outcome(took, expected)


def _changed(calls: Sequence[Timed], slower: Slower | None) -> Sequence[Timed]:
    if slower is None:
        return calls

    def times(number: int, before: Mapping[str, float]) -> dict[str, float]:
        return {tool: seconds * slower(number, tool) for tool, seconds in before.items()}

    return [
        Timed(call.nbytes, times(number, call.seconds), times(number, call.expected))
        for number, call in enumerate(calls)
    ]


def _ranked(calls: Iterable[Timed]) -> list[str]:
    """The tools, by the time that each would take for all calls."""
    totals: dict[str, float] = {}
    for call in calls:
        for tool, seconds in call.expected.items():
            totals[tool] = totals.get(tool, 0.0) + seconds
    return sorted(totals, key=totals.__getitem__)


def _reversed(calls: Sequence[Timed]) -> Rule:
    """A rule in which the slowest tool is the fastest."""
    ranked = _ranked(calls)
    return Rule({}, Prior([(0, {tool: (0.3 * place, 0.165) for place, tool in enumerate(reversed(ranked))})]), {})


def _outcome(ours: float, expected: Sequence[Mapping[str, float]]) -> Outcome:
    single = min(sum(call[tool] for call in expected) for tool in expected[0])
    return Outcome(ours, single, sum(min(call.values()) for call in expected))


def table(traces: Iterable[Sequence[Row]]) -> dict[str, tuple[float, float]]:
    """By scenario: the dictionary's total over the oracle's, and the best single tool's; means over works."""
    found: dict[str, list[Outcome]] = {}
    for rows in traces:
        for scenario, _, outcome in outcomes(rows):
            found.setdefault(scenario, []).append(outcome)
    return {
        scenario: (fmean(one.ours / one.oracle for one in own), fmean(one.single / one.oracle for one in own))
        for scenario, own in found.items()
    }


def sensitivity(traces: Sequence[Sequence[Row]]) -> Iterator[tuple[str, float, float, float]]:
    """How much longer the dictionary takes with each tuned number halved and doubled, as shares of the total.

    By number and factor (0.5 or 2): the mean over the scenarios, and the worst scenario's. Left out is the
    scenario in which another tool becomes faster: when it is noticed is luck.
    """
    usual = {scenario: ours for scenario, (ours, _) in table(traces).items() if "another tool" not in scenario}
    for name, value in list(vars(constants).items()):
        for factor in (0.5, 2.0) if name.isupper() else ():
            changed = tuple(one * factor for one in value) if isinstance(value, tuple) else type(value)(value * factor)
            setattr(constants, name, changed)
            try:
                found = table(traces)
            finally:
                setattr(constants, name, value)
            longer = [found[scenario][0] / ours - 1 for scenario, ours in usual.items()]
            yield name, factor, fmean(longer), max(longer)


def main(*arguments: str) -> None:
    """Print the table, and with ``--sensitivity`` that of the numbers, which takes half an hour."""
    paths = [Path(argument) for argument in arguments if not argument.startswith("--")] or [trace.SHIPPED]
    traces = [trace.read(path) for path in paths]
    print(f"{'total over the oracle':48} dictionary  single tool")
    for scenario, (ours, single) in table(traces).items():
        print(f"{scenario:48} {ours:10.3f} {single:12.3f}")
    if "--sensitivity" in arguments:
        print(f"\n{'number':24} factor   mean    worst")
        for name, factor, mean, worst in sensitivity(traces):
            print(f"{name:24} {factor:6.1f} {mean:+7.1%} {worst:+7.1%}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
