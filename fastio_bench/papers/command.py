"""``fastio-bench papers``: one table of the papers' figures and ours."""

from __future__ import annotations

from pathlib import Path

import click

from fastio_bench.harness import plain_json
from fastio_bench.harness.run_record import consoles
from fastio_bench.papers import page
from fastio_bench.report import terminal
from fastio_bench.report.documents import DocumentError, read_any


def papers(folder: Path | None, as_json: bool) -> None:
    """Print the table, with what the documents in ``folder`` have of it."""
    try:
        table = page.table([] if folder is None else read_any(folder), folder)
    except DocumentError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(plain_json.text(table.document()))
    else:
        consoles()[0].print(terminal.render(table))
