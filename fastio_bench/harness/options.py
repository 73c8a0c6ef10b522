"""The options that subcommands share, and the parsers of sizes.

No module of options imports torch or fastio, so ``--help`` answers at once. A choice is therefore written out, and a
test compares it with what the subcommand knows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

_OPTIONS = (
    click.option(
        "--dir",
        "parent",
        type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
        default=".",
        help="Where to measure: a temporary folder is made there, and removed.  [default: the current folder]",
    ),
    click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Write JSON and plots here."),
    click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables."),
)


def as_bytes(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Parse an option in bytes: a number, or a number with a unit. Raises click.BadParameter."""
    from fastio.sizes import parse_size

    try:
        return parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from error


def as_some_bytes(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Parse an option in bytes that must be more than 0. Raises click.BadParameter."""
    nbytes = as_bytes(context, parameter, value)
    if nbytes == 0:
        raise click.BadParameter(f"{value} is nothing: expected more", context, parameter)
    return nbytes


def common(
    function: Callable[..., None], quick: str = "Fewer sizes and rounds: a minute or two on an idle machine."
) -> Callable[..., None]:
    """Add the options that every subcommand has, and pass them as a :class:`CommandRun`.

    ``quick`` is --quick's help.
    """

    def command(context: click.Context, parent: Path, quick: bool, out: Path | None, as_json: bool, **own: Any) -> None:
        from fastio_bench.harness.command_run import CommandRun

        function(CommandRun(context.info_name or "", parent, quick, out, as_json), **own)

    functools.update_wrapper(command, function)
    result: Callable[..., None] = click.pass_context(command)
    where, *others = _OPTIONS
    for option in reversed((where, click.option("--quick", is_flag=True, help=quick), *others)):
        result = option(result)
    return result
