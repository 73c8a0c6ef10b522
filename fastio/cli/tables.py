"""Prints tables and trees: fitted to a terminal, and with whole rows into files and pipes."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence

import click
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from fastio.cli.messages import escaped

_LONGEST = 1000  # characters of a cell
_UNLIMITED = 100_000  # columns: lines in files and pipes are never broken


def show(thing: RenderableType) -> None:
    """Print to stdout."""
    if sys.stdout.isatty():
        Console(highlight=False, markup=False, emoji=False).print(thing)
        return
    text = io.StringIO()
    Console(file=text, width=_UNLIMITED, highlight=False, markup=False, emoji=False).print(thing)
    click.echo("\n".join(line.rstrip() for line in text.getvalue().splitlines()))


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[str] = ()) -> None:
    """Print a table; the columns in ``numbers`` are right-justified and never broken."""
    texts = [[escaped(str(cell)[:_LONGEST]) for cell in row] for row in rows]
    if sys.stdout.isatty():
        made = Table(box=None, pad_edge=False, header_style="bold")
        for column in columns:
            right = column in numbers
            made.add_column(column, justify="right" if right else "left", no_wrap=right, overflow="fold")
        for row in texts:
            made.add_row(*map(Text, row))
        show(made)
        return
    lines = [list(columns), *texts]  # rich would take seconds for 10,000 rows
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())
