"""``fastio-bench tune``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from fastio.bench import charts, sweep, tables, tune_charts, warmup, workloads
from fastio.bench import tune as tuning
from fastio.bench.conduct import Conduct, common


@click.command(short_help="Fill and keep this machine's dictionaries.")
@click.option(
    "--rounds", type=click.IntRange(1), help=f"Most rounds; {warmup.MOST_ROUNDS}, with --quick {tuning.QUICK_ROUNDS}."
)
@common
def tune(conduct: Conduct, rounds: int | None) -> None:
    """Fill and keep this machine's dictionaries, by saving and loading all sizes with policy="auto".

    fastio learns by itself as it is used; this only brings it forward, and shows what was learned.
    """
    rounds = rounds or (tuning.QUICK_ROUNDS if conduct.quick else warmup.MOST_ROUNDS)
    kept, cut = sweep.fitting(tuning.QUICK_BATCHES if conduct.quick else tuning.BATCHES, conduct.parent)
    conduct.report.notes += [cut] if cut else []
    picked = kept if conduct.quick else [*kept, workloads.small_tensors()]
    conduct.report.settings |= {"rounds": rounds, "workloads": [workload.name for workload in picked]}

    calls: tuning.Calls = {}
    conduct.report.findings["calls"] = calls

    def work(folder: Path) -> None:
        plan = tuning.Tuning(folder, rounds, picked, calls=calls)
        with conduct.meter(plan.weights()) as plan.tell:
            plan.run()

    def show() -> list[Any]:
        rows = tuning.learned(conduct.parent, picked)
        conduct.report.findings["learned"] = [{"work": work, **asdict(answer)} for work, answer in rows]
        return [tables.learned(rows)]

    def draw(beginning: Path) -> list[Path]:
        return charts.write(beginning, tune_charts.sheets(conduct.report.findings))

    conduct.run(work, show, draw)
