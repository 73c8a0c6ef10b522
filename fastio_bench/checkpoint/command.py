"""``fastio-bench checkpoint``: saving and restoring a training's state, beside torch.save and DCP."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from fastio_bench.checkpoint import runs, savers, simulated_tables
from fastio_bench.checkpoint import tables as checkpoint_tables
from fastio_bench.checkpoint.options import LEAST
from fastio_bench.checkpoint.simulated_system import System
from fastio_bench.checkpoint.state import shape_of
from fastio_bench.harness.command_run import CommandRun, forecast
from fastio_bench.harness.memory_reserve import available_memory

SIZE, QUICK_SIZE = 3_600_000_000, 400_000_000


def checkpoint(command: CommandRun, size: int | None, rounds: int | None, simulate_ranks: int | None) -> None:
    """Saves and restores of a model with its AdamW, by one process and by ranks, beside torch.save and DCP."""
    if simulate_ranks is not None:
        _simulate(command, simulate_ranks, size or simulated_tables.NBYTES)
        return
    asked = size or (QUICK_SIZE if command.quick else SIZE)
    room = min(available_memory() // runs.MEMORY, shutil.disk_usage(command.parent).free // runs.DISK)
    size = max(min(asked, room), LEAST)
    if size < asked:
        command.report.notes.append(
            f"{size / 1e9:.2f} GB instead of {asked / 1e9:.2f} GB, for want of memory or disk: a process takes "
            f"{runs.MEMORY} times that, the files {runs.DISK} times"
        )
    rounds = rounds or (1 if command.quick else 3)
    shape = shape_of(size)
    command.report.settings |= {
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
        with command.meter(weights) as plan.tell, closing(plan.run()) as outcomes:
            for _ in command.report.take(outcomes):
                pass

    def show() -> list[Any]:
        found = checkpoint_tables.summaries(command.report.samples)
        command.report.tables += checkpoint_tables.tables(found, command.report.failures)
        goals = checkpoint_tables.goals(found)
        command.report.findings["goals"] = [goal.document() for goal in goals]
        return []

    command.run(work, show)


def _simulate(command: CommandRun, ranks: int, nbytes: float) -> None:
    system = System()
    command.report.settings |= {"ranks": ranks, "size": nbytes, "system": system._asdict()}
    command.run(lambda _: command.report.tables.extend(simulated_tables.tables(ranks, nbytes, system)))


def _forecast(seconds: float, size: int) -> str:
    memory = runs.MEMORY * size / (1 << 30)
    return f"{forecast(seconds, round(runs.DISK * size))} and {memory:.1f} GiB of memory"
