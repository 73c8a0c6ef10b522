"""The options of ``fastio-bench contend`` and its help, without what it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fastio_bench.harness.options import common

if TYPE_CHECKING:
    from fastio_bench.harness.command_run import CommandRun


@click.command()
@click.option("--rounds", type=click.IntRange(1), help="Rounds; 5, with --quick 3.")
@click.option(
    "--device",
    type=click.Choice(("simulated",)),
    help="Instead: training on a simulated device whose host has what the others leave.",
)
@common
def contend(command: CommandRun, **given: Any) -> None:
    """Saves, loads and training while other processes take 50, 70 and 90 % of memory bandwidth, and what those lose."""
    from fastio_bench.contend.command import contend as run

    run(command, **given)
