"""``fastio-bench tune``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from fastio_bench.harness import warmup
from fastio_bench.harness.command_run import CommandRun, common
from fastio_bench.io import sweep
from fastio_bench.report import charts
from fastio_bench.tools import tune as tuning
from fastio_bench.tools import tune_charts
from fastio_bench.workloads import objects


@click.command(short_help="Fill and keep this machine's dictionaries.")
@click.option(
    "--rounds", type=click.IntRange(1), help=f"Most rounds; {warmup.MOST_ROUNDS}, with --quick {tuning.QUICK_ROUNDS}."
)
@common
def tune(conduct: CommandRun, rounds: int | None) -> None:
    """Fill and keep this machine's dictionaries, by saving and loading all sizes with policy="auto".

    fastio learns by itself as it is used; this only brings it forward, and shows what was learned.
    """
    rounds = rounds or (tuning.QUICK_ROUNDS if conduct.quick else warmup.MOST_ROUNDS)
    kept, cut = sweep.fitting(tuning.QUICK_BATCHES if conduct.quick else tuning.BATCHES, conduct.parent)
    conduct.report.notes += [cut] if cut else []
    picked = kept if conduct.quick else [*kept, objects.small_tensors()]
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
        return []

    def draw(beginning: Path) -> list[Path]:
        return charts.write(beginning, tune_charts.sheets(conduct.report.findings))

    conduct.run(work, show, draw)
