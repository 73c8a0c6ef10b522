"""``fastio-bench model``: how long it takes to save and to load the state dicts of real models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from fastio.bench import model_runs, model_tables, papers, room, workloads
from fastio.bench.conduct import Conduct, common, forecast
from fastio.bench.models import MODELS
from fastio.bench.stats import summarise

_QUICK = ("alexnet", "mobilenet-v3-small")
_DEFAULT = tuple(model_tables.PAPER_MIB)
_SECONDS = 900.0
_ROUNDS = 3


@click.command(short_help="Seconds to save and to load real models.")
@click.option(
    "--model",
    "names",
    multiple=True,
    metavar="NAME",
    type=click.Choice(list(MODELS)),
    help=f"Only this; may be repeated: {', '.join(MODELS)}.  "
    f"[default: the paper's ten; with --quick {' and '.join(_QUICK)}]",
)
@click.option("--rounds", type=click.IntRange(1), help=f"Rounds; {_ROUNDS}, or what fits into a quarter of an hour.")
@common
def model(conduct: Conduct, names: tuple[str, ...], rounds: int | None) -> None:
    """Seconds to save (durably and not) and to load (cold and warm) real models' state dicts, by tool."""
    chosen = dict.fromkeys(names or (_QUICK if conduct.quick else _DEFAULT))
    kept, cut = room.fitting([workloads.model(name) for name in chosen], conduct.parent, model_runs.FILES + 1)
    tools, remarks = model_runs.tools()
    conduct.report.notes += [*([cut] if cut else []), *remarks]
    settings = {"models": [own.name for own in kept], "tools": [tool.label for tool in tools]}
    conduct.report.mode = names[0] if len(names) == 1 else ""
    conduct.report.settings |= {"rounds": rounds or _ROUNDS, **settings}

    def work(folder: Path) -> None:
        seconds = _SECONDS if rounds is None else math.inf
        plan = model_runs.ModelRuns(folder, rounds or _ROUNDS, kept, tools, seconds)
        most = max((own.nbytes for own in kept), default=0) * model_runs.FILES
        click.echo(forecast(plan.pace.total(), most), err=True)
        with conduct.meter(plan.weights()) as plan.tell:
            for _ in conduct.report.take(plan.run()):
                pass
        if plan.left_out:
            conduct.report.notes.append(f"left out, for want of time: {', '.join(plan.left_out)}; ask for --rounds 1")

    def show() -> list[Any]:
        summaries, failures = summarise(conduct.report.samples), conduct.report.failures
        conduct.report.exhibits += [*model_tables.exhibits(summaries, failures), *papers.of(model_tables.SOURCE)]
        return [f"{failure.workload}, {failure.work}, {failure.tool}: {failure.reason}" for failure in failures]

    conduct.run(work, show)
