"""``fastio-bench checkpoint``: saving and restoring a training's state, beside torch.save and DCP."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from fastio_bench.checkpoint import runs, savers
from fastio_bench.checkpoint import tables as checkpoint_tables
from fastio_bench.checkpoint.state import shape_of
from fastio_bench.harness.command_run import CommandRun, as_bytes, common, forecast
from fastio_bench.harness.memory_reserve import available_memory

SIZE, QUICK_SIZE = 3_600_000_000, 400_000_000
_LEAST = 1_000_000


def _state_size(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Bytes of a state that is large enough to be measured."""
    nbytes = as_bytes(context, parameter, value)
    if nbytes is not None and nbytes < _LEAST:
        raise click.BadParameter(f"{value} is less than {_LEAST / 1e6:.0f}MB", context, parameter)
    return nbytes


@click.command(short_help="Saves and restores of a model and its optimizer.")
@click.option("--size", metavar="SIZE", callback=_state_size, help="Parameters and moments; 3.6GB, with --quick 400MB.")
@click.option("--rounds", type=click.IntRange(1), help="Rounds; 3, with --quick 1.")
@common
def checkpoint(conduct: CommandRun, size: int | None, rounds: int | None) -> None:
    """Saves and restores of a model with its AdamW, one process and two, beside torch.save and DCP."""
    asked = size or (QUICK_SIZE if conduct.quick else SIZE)
    room = min(available_memory() // runs.MEMORY, shutil.disk_usage(conduct.parent).free // runs.DISK)
    size = max(min(asked, room), _LEAST)
    if size < asked:
        conduct.report.notes.append(
            f"{size / 1e9:.2f} GB instead of {asked / 1e9:.2f} GB, for want of memory or disk: a process takes "
            f"{runs.MEMORY} times that, the files {runs.DISK} times"
        )
    rounds = rounds or (1 if conduct.quick else 3)
    shape = shape_of(size)
    conduct.report.settings |= {
        "size": size,
        "depth": shape.depth,
        "width": shape.width,
        "rounds": rounds,
        "saves": runs.SAVES,
        "tools": savers.SETTINGS,
    }

    def work(folder: Path) -> None:
        plan = runs.Runs(folder, shape, size, rounds)
        weights = [step.weight for step in plan.steps()]
        click.echo(_forecast(sum(weights), size), err=True)
        with conduct.meter(weights) as plan.tell, closing(plan.run()) as outcomes:
            for _ in conduct.report.take(outcomes):
                pass

    def show() -> list[Any]:
        found = checkpoint_tables.summaries(conduct.report.samples)
        conduct.report.exhibits += checkpoint_tables.exhibits(found, conduct.report.failures)
        goals = checkpoint_tables.goals(found)
        conduct.report.findings["goals"] = [goal.document() for goal in goals]
        return []

    conduct.run(work, show)


def _forecast(seconds: float, size: int) -> str:
    memory = runs.MEMORY * size / (1 << 30)
    return f"{forecast(seconds, round(runs.DISK * size))} and {memory:.1f} GiB of memory"
