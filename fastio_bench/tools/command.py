"""``fastio-bench tools``: the distribution of the best tool, and how close the dictionaries come to always using it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from fastio.dicts.shipped import shipped_rules
from fastio_bench.harness import room
from fastio_bench.harness.command_run import CommandRun
from fastio_bench.machine import host
from fastio_bench.report import charts
from fastio_bench.report.table import SIMULATED
from fastio_bench.tools import charts as tools_charts
from fastio_bench.tools import live, recording, replays, trace
from fastio_bench.tools import tables as tools_tables
from fastio_bench.tools.options import CALLS, SECONDS, TRACED
from fastio_bench.tools.rebuilt_dictionaries import Model, Training
from fastio_bench.tools.trace import Row

_MODELS = (
    Model("transformer", "a transformer", 32, 6, 256, "Fastensor, table 13", "BERT of 12 layers, width 768"),
    Model("vit", "a vision transformer", 64, 6, 192, "Fastensor, table 14", "ViT-H/14 of 32 layers, width 1,280"),
)
_QUICK_MODELS = tuple(replace(model, batch=8, depth=2) for model in _MODELS)
_QUICK_CALLS = 160
_QUICK_SECONDS = 8.0
_REPLAY_SECONDS = 20.0
_TRAINING_NBYTES = 1 << 30  # bytes of disk, at most: the feature maps of one step
_ORACLE = (
    "The oracle uses the tool whose median over the calls nearest in size is the least; which tool is the luckiest of "
    "a call cannot be known beforehand."
)


def tools(
    command: CommandRun, calls: int | None, seconds: float | None, traced: Path | None, target: Path | None
) -> None:
    """How the best tool spreads over rebuilt dictionaries, and how near the tuner comes to always using it."""
    if target is not None:
        recording.record(command, target, calls or TRACED)
        return
    calls = calls or (_QUICK_CALLS if command.quick else CALLS)
    seconds = seconds if seconds is not None else (_QUICK_SECONDS if command.quick else SECONDS)
    trainings = [Training(model) for model in _fitting(command, _QUICK_MODELS if command.quick else _MODELS)]
    command.report.settings |= {"calls": calls, "seconds": seconds, "models": [asdict(one.model) for one in trainings]}
    command.report.settings |= {"trace": traced.name} if traced else {}
    try:
        rows = trace.read(traced or trace.SHIPPED)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    comparison = recording.comparison(command, recording.LIVE, calls, auto=True)
    _measure(command, rows, trainings, seconds, comparison)


def _measure(
    command: CommandRun, rows: list[Row], trainings: list[Training], seconds: float, comparison: live.Comparison
) -> None:
    compared: list[Row] = []
    replayed: list[replays.Reached] = []
    slower: list[replays.Recovered] = []
    bounds: list[replays.Reached] = []

    def work(folder: Path) -> None:
        weights = [_REPLAY_SECONDS, *(max(seconds, 1.0) for _ in trainings), *comparison.weights()]
        recording.announce(weights, comparison, _TRAINING_NBYTES)
        with command.meter(weights) as tell:
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
                recording.take(command, compared, comparison.run(folder))

    def show() -> list[Any]:
        tables = command.report.tables
        trained = [training for training in trainings if training.found]
        tables.extend(map(tools_tables.spread, trained))
        if trained:
            tables.extend((tools_tables.reach(trained), tools_tables.paper()))
        if replayed:
            others = replays.ORDERS - replays.BEGINNINGS
            orders = f"in the recorded order from {replays.BEGINNINGS} beginnings and in {others} others"
            note = f"RECORDED timings, {orders}. {_ORACLE}"
            title = "The tuner on a recorded trace"
            tables.append(tools_tables.oracle("replayed", title, replayed, note, SIMULATED))
            tables.append(
                tools_tables.bounds("bounds", "The recorded calls by a learner that is told everything", bounds)
            )
            tables.append(tools_tables.recovered(slower))
        by_auto = [row for row in compared if live.AUTO in row.seconds]
        lived, left_out = replays.lived(by_auto, live.AUTO, comparison.chosen)
        command.report.notes += [f"live, {remark}" for remark in left_out]
        command.report.notes += host.remark(comparison.again)
        if lived:
            note = f"Every tool did the same as auto right before or after it, in random order. {_ORACLE}"
            tables.append(tools_tables.oracle("live", 'policy="auto", with nothing learned before', lived, note))
            told = replays.lived_bounds(by_auto, live.AUTO)
            tables.append(
                tools_tables.bounds("live-bounds", "The same calls by a learner that is told everything", told)
            )
        judged = iter(comparison.chosen)
        command.report.findings["compared"] = [
            {**row._asdict(), "chosen": next(judged) if live.AUTO in row.seconds else None} for row in compared
        ]
        command.report.findings["rebuilds"] = {
            training.model.name: {str(nbytes): list(map(asdict, found)) for nbytes, found in training.found.items()}
            for training in trained
        }
        goals = tools_tables.goals(replayed, slower, lived)
        command.report.findings["goals"] = [goal.document() for goal in goals]
        return []

    def draw(beginning: Path) -> list[Path]:
        return charts.write(beginning, tools_charts.sheets(command.report.tables))

    command.run(work, show, draw)


def _fitting(command: CommandRun, models: Sequence[Model]) -> list[Model]:
    """The models, with smaller batches if a step's feature maps do not fit."""
    whole, found = {model.name: model.batch for model in _MODELS}, []
    for model in models:
        batch = max(1, whole[model.name] * room.most(command.parent, 1) // _TRAINING_NBYTES)
        if batch < model.batch:
            command.report.notes.append(f"{model.label}: batch {batch} instead of {model.batch}, {room.WANT}")
        found.append(replace(model, batch=min(batch, model.batch)))
    return found
