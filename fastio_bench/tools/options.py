"""The options of ``fastio-bench tools`` and its help, without what it runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fastio_bench.harness.options import common

if TYPE_CHECKING:
    from fastio_bench.harness.command_run import CommandRun

CALLS, SECONDS = 1000, 150.0
TRACED = 4200  # calls of a recording


def _finite(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """Refuse NaN and infinity, which click's ranges accept."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number of seconds", context, parameter)
    return value


@click.command()
@click.option("--calls", type=click.IntRange(8), help=f"Saves and loads of the live comparison; {CALLS:,}.")
@click.option(
    "--seconds", type=click.FloatRange(0), callback=_finite, help=f"How long each model trains; {SECONDS:.0f}."
)
@click.option(
    "--trace",
    "traced",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Replay this trace.  [default: the one that ships]",
)
@click.option(
    "--record",
    "target",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help=f"Instead: time every tool {TRACED:,} times at mixed sizes, and write a trace.",
)
@common
def tools(command: CommandRun, **given: Any) -> None:
    """How the best tool spreads over rebuilt dictionaries, and how near the tuner comes to always using it."""
    from fastio_bench.tools.command import tools as run

    run(command, **given)
