"""Tables and goals of ``fastio-bench tools``. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fastio_bench.peers.goals import Goal
from fastio_bench.report.table import MEASURED, PAPER, SIMULATED, Cell, ResultTable
from fastio_bench.tools.rebuilt_dictionaries import Training
from fastio_bench.tools.rebuilt_tables import shares, sizes
from fastio_bench.tools.replaying import WINDOW
from fastio_bench.tools.replays import ALL, FACTOR, RECOVERY, WARM_UP, Reached, Recovered

# Fastensor, section 5.2.3: shares of the rebuilds whose best tool was chosen, in training BERT and ViT.
_PAPER = (("first", 0.7959, 0.8543), ("best", 0.8852, 0.8922), ("torch alone", 0.1601, 0.0823))
_TOTAL, _SHARE, _RECOVERED = 1.03, 0.95, 1.02  # the goals


def spread(training: Training) -> ResultTable:
    """How often each tool was the best in the rebuilds, by size."""
    model, found = training.model, training.found
    lines = sizes(found)
    tools = list(dict.fromkeys(tool for rebuilds in found.values() for one in rebuilds for tool in one.written))
    rows: list[list[Cell]] = [
        [line.nbytes / 1e6, line.rebuilds, *(line.best_of.get(tool, 0) for tool in tools), line.first, line.best]
        for line in lines
    ]
    return ResultTable(
        f"spread-{model.name}",
        f"How often each tool was best, dictionaries rebuilt while {model.label} trains ({training.steps} steps)",
        ["MB*", "rebuilds*", *(f"{tool}*" for tool in tools), "first", "best"],
        rows,
        source=model.source,
        note=f"A small network: {model.depth} layers, width {model.width}, batch {model.batch}; the paper trained "
        f"{model.paper}. Time to write and to read one feature map, files in the page cache where the tool uses it.",
    )


def reach(trainings: Sequence[Training]) -> ResultTable:
    """How close first, best, the live tuner and each tool alone come to the best of each rebuild."""
    by_model = {one.model.name: {share.way: share for share in shares(one.found)} for one in trainings}
    ways = list(dict.fromkeys(way for own in by_model.values() for way in own))
    columns = ["way", *(f"{label}: {what}*" for label in by_model for what in ("% of cases", "% of best time"))]
    rows: list[list[Cell]] = []
    for way in ways:
        row: list[Cell] = [way]
        for own in by_model.values():
            row += [100 * own[way].cases, 100 * own[way].time] if way in own else [None, None]
        rows.append(row)
    return ResultTable(
        "reach",
        "What share of the best possible each way of choosing reaches in training",
        columns,
        rows,
        source="Fastensor, section 5.2.3",
        note="Cases: rebuilds whose best tool was chosen, which is what the paper counts. Best time: the least "
        "possible time over that of the choices. The best of a rebuild is what one sample of each tool says, luck "
        "included; 'best' knows the whole run beforehand, and so does who picks the best of the tools alone. "
        "By the other half: every second rebuild uses the tool that was the fastest in the others.",
    )


def paper() -> ResultTable:
    """The paper's own figures."""
    return ResultTable(
        "reach-paper",
        "The same in the paper, pt, npy and cpy on a GPU",
        ["way", "BERT: % of cases*", "ViT: % of cases*"],
        [[way, 100 * bert, 100 * vit] for way, bert, vit in _PAPER],
        PAPER,
        "Fastensor, section 5.2.3, tables 13 and 14",
    )


def oracle(name: str, title: str, found: Sequence[Reached], note: str, origin: str = MEASURED) -> ResultTable:
    """The tuner beside the oracle."""
    tools = list(dict.fromkeys(tool for line in found for tool in line.alone))
    rows: list[list[Cell]] = [
        [
            line.work,
            line.calls,
            line.total,
            line.raw,
            "" if line.low == line.high else f"{line.low:.3f}-{line.high:.3f}",
            None if line.share is None else 100 * line.share,
            None if line.alike is None else 100 * line.alike,
            line.lucky,
            *(line.alone.get(tool) for tool in tools),
        ]
        for line in found
    ]
    return ResultTable(
        name,
        title,
        [
            "work",
            "calls*",
            "total*",
            "with luck*",
            "any order",
            "% best*",
            "% alike*",
            "oracle*",
            *(f"{tool}*" for tool in tools),
        ],
        rows,
        origin,
        "Fastensor, section 5.2.3",
        f"Total: over the oracle's. % best: calls on the best tool or one within 2 % of it, after the first {WARM_UP} "
        "of each work. % alike: those, and calls on a tool that these timings cannot tell from the best (sign test "
        f"over the {WINDOW} calls nearest in size). Oracle: its total over that of each call's luckiest tool. Under a "
        f"tool's name: its total, had it done everything. {note}",
    )


def bounds(name: str, title: str, found: Sequence[Reached]) -> ResultTable:
    """The bounds of any choosing on a trace, or live."""
    rows: list[list[Cell]] = [
        [line.work, line.total, *(None if share is None else 100 * share for share in (line.share, line.alike))]
        for line in found
    ]
    return ResultTable(
        name,
        title,
        ["work", "total*", "% best*", "% alike*"],
        rows,
        SIMULATED,
        "Fastensor, section 5.2.3",
        "It hears what every tool took, and need not try any; it takes the least median of the calls nearest in size, "
        "from nothing. What it misses is luck: the tools lie nearer to each other than their times vary.",
    )


def recovered(found: Sequence[Recovered]) -> ResultTable:
    """The tuner after a change of speed."""
    return ResultTable(
        "slower",
        f"One tool becomes {FACTOR:g} times slower halfway: total / oracle from {RECOVERY} calls later on",
        ["work", "tool", "after the change*", "told everything*", "without it*"],
        [[line.work, line.tool, line.after, line.told, line.undisturbed] for line in found],
        SIMULATED,
        "Fastensor, section 5.2.3",
        "Replayed: recorded times, multiplied. Told everything: by the learner that hears what every tool took, and of "
        "the change from the first call.",
    )


def goals(replayed: Sequence[Reached], slower: Sequence[Recovered], live: Sequence[Reached]) -> list[Goal]:
    """The goals of the tuner, for those figures that there are."""
    found = []
    for where, origin, lines in (("replayed", SIMULATED, replayed), ("live", MEASURED, live)):
        for line in lines:
            if line.work == ALL or len(lines) == 1:
                against = "the oracle's total time, by what the tools chosen usually take"
                found.append(Goal(where, line.work, against, _TOTAL, line.total, least=False, origin=origin))
                if origin == MEASURED:
                    against = "the oracle's total time, as timed: with choosing, and with luck"
                    found.append(Goal(where, line.work, against, _TOTAL, line.raw, least=False, origin=origin))
                if line.share is not None and line.alike is not None:
                    for against, share in (
                        ("calls on the best tool, within 2 %", line.share),
                        ("calls on the best tool, or one that cannot be told from it", line.alike),
                    ):
                        found.append(Goal(where, line.work, against, 100 * _SHARE, 100 * share, "%", origin=origin))
    for change in slower:
        if change.after is not None:
            against = f"the new oracle, {change.tool} {FACTOR:g} times slower"
            found.append(
                Goal("replayed", change.work, against, _RECOVERED, change.after, least=False, origin=SIMULATED)
            )
    return found
