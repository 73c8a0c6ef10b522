"""``fastio-bench papers``: one page of the papers' figures and ours."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument(
    "folder", metavar="[DIR]", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def papers(folder: Path | None, as_json: bool) -> None:
    """The papers' tables and figures, and what answers each: theirs, ours, the ratio.

    Models and simulations are computed now, in seconds. What has to be measured is read from the documents that other
    subcommands left in DIR with --out DIR; without them, the row says which command makes it.
    """
    from fastio_bench.harness import plain_json
    from fastio_bench.harness.run_record import consoles
    from fastio_bench.papers import page
    from fastio_bench.report import terminal
    from fastio_bench.report.documents import DocumentError, read_folder

    try:
        table = page.table([] if folder is None else read_folder(folder))
    except DocumentError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(plain_json.text(table.document()))
    else:
        consoles()[0].print(terminal.render(table))
