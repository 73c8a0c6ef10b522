"""``fastio-bench model``: the seconds to save and to load the state dicts of real models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from fastio_bench.harness import room
from fastio_bench.harness.command_run import CommandRun, forecast
from fastio_bench.harness.stats import summarise
from fastio_bench.model import runs, tables
from fastio_bench.model.options import QUICK, ROUNDS
from fastio_bench.papers import figures
from fastio_bench.workloads import objects

_DEFAULT = tuple(tables.PAPER_MIB)
_SECONDS = 900.0


def model(command: CommandRun, names: tuple[str, ...], rounds: int | None) -> None:
    """Seconds to save (durably and not) and to load (cold and warm) real models' state dicts, by tool."""
    chosen = dict.fromkeys(names or (QUICK if command.quick else _DEFAULT))
    kept, cut = room.fitting([objects.model(name) for name in chosen], command.parent, runs.FILES + 1)
    tools, remarks = runs.tools()
    command.report.notes += [*([cut] if cut else []), *remarks]
    settings = {"models": [own.name for own in kept], "tools": [tool.label for tool in tools]}
    command.report.mode = names[0] if len(names) == 1 else ""
    command.report.settings |= {"rounds": rounds or ROUNDS, **settings}

    def work(folder: Path) -> None:
        seconds = _SECONDS if rounds is None else math.inf
        plan = runs.ModelRuns(folder, rounds or ROUNDS, kept, tools, seconds)
        most = max((own.nbytes for own in kept), default=0) * runs.FILES
        click.echo(forecast(plan.budget.total(), most), err=True)
        with command.meter(plan.weights()) as plan.tell:
            for _ in command.report.take(plan.run()):
                pass
        if plan.left_out:
            command.report.notes.append(f"left out, for want of time: {', '.join(plan.left_out)}; ask for --rounds 1")

    def show() -> list[Any]:
        summaries, failures = summarise(command.report.samples), command.report.failures
        command.report.tables += [*tables.tables(summaries, failures), *figures.of(tables.SOURCE)]
        return [f"{failure.workload}, {failure.work}, {failure.tool}: {failure.reason}" for failure in failures]

    command.run(work, show)
