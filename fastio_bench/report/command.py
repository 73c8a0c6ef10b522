"""``fastio-bench report``: writes a results folder as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from fastio.runtime.installation import pip_install
from fastio_bench.harness import whole_files
from fastio_bench.report.documents import DocumentError, read_folder
from fastio_bench.report.page import page

_NAME = "report.html"


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"Where to write the page.  [default: {_NAME} in DIR]",
)
def report(folder: Path, output: Path | None) -> None:
    """One self-contained HTML page of all that other subcommands left in DIR with --out DIR.

    Machine, settings, tables and plots; needs no network and no scripts, and reads well on a phone, light and dark.
    Two runs of peers with a workload in common are compared: give the first another name before the same is run again.
    """
    output = output or folder / _NAME
    try:
        text = page(read_folder(folder))
    except DocumentError as error:
        raise click.ClickException(str(error)) from error
    except ImportError as error:
        raise click.ClickException(f"plots need matplotlib ({error}): {pip_install('bench')}") from error
    try:
        whole_files.write(output, text)
    except OSError as error:
        reason = f"{output}: the page cannot be written ({error.strerror}); name another file with --output"
        raise click.ClickException(reason) from error
    click.echo(f"written: {output}", err=True)
