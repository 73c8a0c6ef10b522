"""``fastio-bench tools``: how the best tool spreads, and how near the dictionaries come to always choosing it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from fastio.bench import live, replays, room, tables, tools_exhibits, trace, writable
from fastio.bench.conduct import Conduct, common, forecast
from fastio.bench.exhibit import SIMULATED
from fastio.bench.interrupts import held
from fastio.bench.rounds import Failure
from fastio.bench.spread import Model, Training
from fastio.bench.trace import Row
from fastio.bench.workloads import MIB
from fastio.dicts.storage import shipped_rules

_MODELS = (
    Model("transformer", "a transformer", 32, 6, 256, "Fastensor, table 13"),
    Model("vit", "a vision transformer", 64, 6, 192, "Fastensor, table 14"),
)
_QUICK_MODELS = tuple(replace(model, batch=8, depth=2) for model in _MODELS)
_LIVE = [f"pt {work}" for work in trace.WORKS]
_RECORDED = [*_LIVE, "npy cold load", "npy warm load"]  # in which DALI takes part
_CALLS, _QUICK_CALLS, _RECORDED_CALLS = 1000, 160, 4200
_SECONDS, _QUICK_SECONDS = 150.0, 8.0
_QUICK_LARGEST = 32 << 20
_REPLAY_SECONDS = 20.0
_TRAINING_NBYTES = 1 << 30  # of disk, at most: the feature maps of one step
_FILES = 3  # of one size that lie on the disk at once: one of each format, and the one being saved
_ORACLE = (
    "The oracle uses the tool whose median over the calls nearest in size is the least; which tool is the luckiest of "
    "a call nobody can know beforehand."
)


@click.command(short_help="How the best tool spreads, and how near auto comes.")
@click.option("--calls", type=click.IntRange(8), help=f"Saves and loads of the live comparison; {_CALLS:,}.")
@click.option("--seconds", type=click.FloatRange(0), help=f"How long each model trains; {_SECONDS:.0f}.")
@click.option(
    "--trace",
    "traced",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Replay this trace.  [default: the one that ships]",
)
@click.option(
    "--record",
    "target",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help=f"Instead: time every tool {_RECORDED_CALLS:,} times at mixed sizes, and write a trace.",
)
@common
def tools(conduct: Conduct, calls: int | None, seconds: float | None, traced: Path | None, target: Path | None) -> None:
    """How the best tool spreads over rebuilt dictionaries, and how near the tuner comes to always using it."""
    if target is not None:
        _record(conduct, target, calls or _RECORDED_CALLS)
        return
    calls = calls or (_QUICK_CALLS if conduct.quick else _CALLS)
    seconds = seconds if seconds is not None else (_QUICK_SECONDS if conduct.quick else _SECONDS)
    trainings = [Training(model) for model in _fitting(conduct, _QUICK_MODELS if conduct.quick else _MODELS)]
    conduct.report.settings |= {"calls": calls, "seconds": seconds, "models": [asdict(one.model) for one in trainings]}
    try:
        rows = trace.read(traced or trace.SHIPPED)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    _measure(conduct, rows, trainings, seconds, _comparison(conduct, _LIVE, calls, auto=True))


def _measure(
    conduct: Conduct, rows: list[Row], trainings: list[Training], seconds: float, comparison: live.Comparison
) -> None:
    compared: list[Row] = []
    replayed: list[replays.Reached] = []
    slower: list[replays.Recovered] = []
    bounds: list[replays.Reached] = []

    def work(folder: Path) -> None:
        weights = [_REPLAY_SECONDS, *(max(seconds, 1.0) for _ in trainings), *comparison.weights()]
        _announce(weights, comparison)
        with conduct.meter(weights) as tell:
            comparison.tell = tell
            what = "replaying a recorded trace"
            tell(what, 0)
            rules = shipped_rules()
            replayed.extend(replays.replays(rows, rules))
            slower.extend(replays.recoveries(rows, rules))
            bounds.extend(replays.bounds(rows))
            tell(what, _REPLAY_SECONDS)
            for training in trainings:
                what = f"training {training.model.label}"
                tell(what, 0)
                training.run(folder, seconds, partial(tell, what))
            with live.fresh_dictionaries(folder):
                _take(conduct, compared, comparison.run(folder))

    def show() -> list[Any]:
        exhibits = conduct.report.exhibits
        trained = [training for training in trainings if training.found]
        exhibits.extend(map(tools_exhibits.spread, trained))
        if trained:
            exhibits.extend((tools_exhibits.reach(trained), tools_exhibits.paper()))
        if replayed:
            others = replays.ORDERS - replays.BEGINNINGS
            orders = f"in the recorded order from {replays.BEGINNINGS} beginnings and in {others} others"
            note = f"RECORDED timings, {orders}. {_ORACLE}"
            title = "The tuner on a recorded trace"
            exhibits.append(tools_exhibits.oracle("replayed", title, replayed, note, SIMULATED))
            exhibits.append(tools_exhibits.bounds(bounds))
            exhibits.append(tools_exhibits.recovered(slower))
        lived = replays.lived([row for row in compared if live.AUTO in row.seconds], live.AUTO, comparison.chosen)
        if lived:
            note = f"Every tool did the same as auto right before or after it, in random order. {_ORACLE}"
            exhibits.append(tools_exhibits.oracle("live", 'policy="auto", with nothing learned before', lived, note))
        conduct.report.findings["compared"] = [row._asdict() for row in compared]
        goals = tools_exhibits.goals(replayed, slower, lived)
        conduct.report.findings["goals"] = [goal.document() for goal in goals]
        return [tables.goals(goals)] if goals else []

    conduct.run(work, show, lambda out: [])


def _record(conduct: Conduct, target: Path, calls: int) -> None:
    writable.file(target, "--record")
    comparison = _comparison(conduct, _RECORDED, calls, auto=False)
    conduct.report.settings |= {"calls": calls}
    rows: list[Row] = []

    def work(folder: Path) -> None:
        weights = comparison.weights()
        _announce(weights, comparison)
        with conduct.meter(weights) as comparison.tell:
            try:
                _take(conduct, rows, comparison.run(folder))
            finally:
                if rows:
                    with held():
                        trace.write(target, rows, trace.remarks(folder, rows))
                        conduct.report.notes.append(f"written: {target}, {len(rows):,} lines")

    conduct.run(work, draw=lambda out: [])


def _fitting(conduct: Conduct, models: Sequence[Model]) -> list[Model]:
    """The models, in smaller batches where there is no room for the feature maps of a step."""
    whole, found = {model.name: model.batch for model in _MODELS}, []
    for model in models:
        batch = max(1, whole[model.name] * room.most(conduct.parent, 1) // _TRAINING_NBYTES)
        if batch < model.batch:
            conduct.report.notes.append(f"{model.label}: batch {batch} instead of {model.batch}, {room.WANT}")
        found.append(replace(model, batch=min(batch, model.batch)))
    return found


def _comparison(conduct: Conduct, works: Sequence[str], calls: int, auto: bool) -> live.Comparison:
    asked = _QUICK_LARGEST if conduct.quick else live.LARGEST
    largest = max(live.SMALLEST, min(asked, room.most(conduct.parent, _FILES)))
    if largest < asked:
        sizes = f"{largest / MIB:,.4g} MiB instead of {asked / MIB:,.4g} MiB"
        conduct.report.notes.append(f"tools are compared up to {sizes}, {room.WANT}")
    return live.Comparison(works, live.sizes(-(-calls // len(works)), largest), auto)


def _announce(weights: Sequence[float], comparison: live.Comparison) -> None:
    room = 2 * max(comparison.sizes) + _TRAINING_NBYTES
    click.echo(forecast(sum(weights), room), err=True)


def _take(conduct: Conduct, rows: list[Row], outcomes: Iterable[Row | Failure]) -> None:
    """Keep each outcome as it comes."""
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            conduct.report.failures.append(outcome)
            conduct.report.notes.append(f"{outcome.tool} failed at {outcome.workload}: {outcome.reason}")
        else:
            rows.append(outcome)
