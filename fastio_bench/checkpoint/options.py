"""The options of ``fastio-bench checkpoint`` and its help, without what it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fastio_bench.harness.options import as_bytes, common

if TYPE_CHECKING:
    from fastio_bench.harness.command_run import CommandRun

LEAST = 1_000_000  # bytes of a state


def _state_size(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Parse the bytes of a state. Raises click.BadParameter if it is too small to measure."""
    nbytes = as_bytes(context, parameter, value)
    if nbytes is not None and nbytes < LEAST:
        raise click.BadParameter(f"{value} is less than {LEAST / 1e6:.0f}MB", context, parameter)
    return nbytes


@click.command()
@click.option("--size", metavar="SIZE", callback=_state_size, help="Parameters and moments; 3.6GB, with --quick 400MB.")
@click.option("--rounds", type=click.IntRange(1), help="Rounds; 3, with --quick 1.")
@click.option(
    "--simulate-ranks", type=click.IntRange(1, 65536), metavar="N",
    help="Instead: a simulated save of --size (840GB) by N ranks to a parallel filesystem.",
)  # fmt: skip
@common
def checkpoint(command: CommandRun, **given: Any) -> None:
    """Saves and restores of a model with its AdamW, by one process and by ranks, beside torch.save and DCP."""
    from fastio_bench.checkpoint.command import checkpoint as run

    run(command, **given)
