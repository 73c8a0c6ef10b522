"""The default mode of ``fastio-bench offload``: steps, memory and gradients by batch, policy, codec and tool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastio.offload.codecs.encoding import is_exact
from fastio_bench.harness.command_run import CommandRun
from fastio_bench.harness.rounds import Failure
from fastio_bench.offload import compare as offload_compare
from fastio_bench.offload import summary as offload_summary
from fastio_bench.offload import training_charts
from fastio_bench.offload.settings import Ways
from fastio_bench.offload.training_job import Job
from fastio_bench.report import charts
from fastio_bench.workloads.training_models import Size

_RSS = (
    "peak RSS: the most resident memory of a process of its own (VmHWM, freed blocks given back at once) above what it "
    "held with model, gradients, optimizer state and one plain step behind it; host memory that offload takes counts"
)


def compare(command: CommandRun, sizes: Sequence[Size], steps: int, rounds: int, own: Ways, ways: Ways) -> None:
    """Train every size by all ``ways``. The goals hold for fastio's ``own`` ways."""
    several = f"{sizes[0].architecture}, depth {sizes[0].depth}, width {sizes[0].width}"
    title = str(sizes[0]) if len(sizes) == 1 else several
    records: list[offload_compare.Record] = []
    runs: list[dict[str, Any]] = []
    command.report.findings["runs"] = runs
    command.report.notes.append(_RSS)

    def work(folder: Path) -> None:
        jobs = [Job("", size.architecture, size.batch, size.depth, size.width, steps, "") for size in sizes]
        plans = [offload_compare.Comparison(folder, job, ways, rounds) for job in jobs]
        with command.meter([weight for plan in plans for weight in plan.weights()]) as tell:
            for plan in plans:
                plan.tell = tell
                for outcome in plan.run():
                    if isinstance(outcome, Failure):
                        command.report.failures.append(outcome)
                    else:
                        records.append(outcome)
                        runs.append(asdict(outcome))

    def show() -> list[str]:
        summaries = offload_summary.summarise(records)
        goals = [
            goal
            for size in sizes
            for way, settings in own.items()
            for goal in offload_summary.check(
                [one for one in summaries if one.batch == size.batch],
                Job(way, size.architecture, size.batch, size.depth, size.width, steps, "", settings),
                str(size) if len(own) == 1 else f"{size}, {way}",
                is_exact(settings["codec"]),
            )
        ]
        command.report.findings["ways"] = [asdict(summary) for summary in summaries]
        command.report.findings["goals"] = [goal.document() for goal in goals]
        return [title]

    def draw(beginning: Path) -> list[Path]:
        return charts.write(beginning, training_charts.steps(command.report.findings))

    command.run(work, show, draw)
