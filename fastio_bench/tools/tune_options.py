"""The options of ``fastio-bench tune`` and its help, without what it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fastio_bench.harness.options import common

if TYPE_CHECKING:
    from fastio_bench.harness.command_run import CommandRun

ROUNDS, QUICK_ROUNDS = 16, 8


@click.command()
@click.option("--rounds", type=click.IntRange(1), help=f"Most rounds; {ROUNDS}, with --quick {QUICK_ROUNDS}.")
@common
def tune(command: CommandRun, **given: Any) -> None:
    """Fill and keep this machine's dictionaries, by saving and loading all sizes with policy="auto".

    fastio learns by itself as it is used; this only brings it forward, and shows what was learned.
    """
    from fastio_bench.tools.tune_command import tune as run

    run(command, **given)
