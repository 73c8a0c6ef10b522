"""``fastio-bench tune``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastio_bench.harness import warmup
from fastio_bench.harness.command_run import CommandRun
from fastio_bench.io import sweep
from fastio_bench.report import charts
from fastio_bench.tools import tune as tuning
from fastio_bench.tools import tune_charts
from fastio_bench.workloads import objects


def tune(command: CommandRun, rounds: int | None) -> None:
    """Fill and keep this machine's dictionaries, by saving and loading all sizes with policy="auto"."""
    rounds = rounds or (tuning.QUICK_ROUNDS if command.quick else warmup.MOST_ROUNDS)
    kept, cut = sweep.fitting(tuning.QUICK_BATCHES if command.quick else tuning.BATCHES, command.parent)
    command.report.notes += [cut] if cut else []
    picked = kept if command.quick else [*kept, objects.small_tensors()]
    command.report.settings |= {"rounds": rounds, "workloads": [workload.name for workload in picked]}

    calls: tuning.Calls = {}
    command.report.findings["calls"] = calls

    def work(folder: Path) -> None:
        plan = tuning.Tuning(folder, rounds, picked, calls=calls)
        with command.meter(plan.weights()) as plan.tell:
            plan.run()

    def show() -> list[Any]:
        rows = tuning.learned(command.parent, picked)
        command.report.findings["learned"] = [{"work": work, **asdict(answer)} for work, answer in rows]
        return []

    def draw(beginning: Path) -> list[Path]:
        return charts.write(beginning, tune_charts.sheets(command.report.findings))

    command.run(work, show, draw)
