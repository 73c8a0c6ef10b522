"""The options of ``fastio-bench store`` and its help, without what it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fastio_bench.harness.options import common

if TYPE_CHECKING:
    from fastio_bench.harness.command_run import CommandRun

SIZES = "2MB,8MB,33MB,103MB,310MB"  # FlashNeuron's activations have 2 to 310 MB
ROUNDS = 9


def parsed_sizes(context: click.Context, parameter: click.Parameter, value: str | None) -> list[int] | None:
    """Parse sizes between commas, in bytes. Raises click.BadParameter."""
    from fastio.sizes import parse_size

    try:
        sizes = [parse_size(one) or 0 for one in value.split(",")] if value else None
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from error
    if sizes is not None and min(sizes) < 1:
        raise click.BadParameter("an activation has at least one byte", context, parameter)
    return sizes


@click.command()
@click.option("--sizes", metavar="SIZES", callback=parsed_sizes, help=f"Of activations.  [default: {SIZES}]")
@click.option("--rounds", type=click.IntRange(1), help=f"Rounds of every size.  [default: {ROUNDS}]")
@click.option("--driver", type=click.Choice(["uring", "threads"]), default="uring", show_default=True)
@common
def store(command: CommandRun, **given: Any) -> None:
    """Bandwidth and processor time of the block store beside fio's and those of a bare ring, in interleaved rounds.

    Activations are written in sequence and read back in reverse, on a file that fio then overwrites and reads as well.
    What was written is compared with what comes back before anything is timed. About two minutes, and twice 620 MB.
    """
    from fastio_bench.store.command import store as run

    run(command, **given)
