"""``fastio-bench report``: writes a results folder as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from fastio.runtime.installation import pip_install
from fastio_bench.harness import whole_files
from fastio_bench.report.documents import DocumentError, read_folder
from fastio_bench.report.options import NAME
from fastio_bench.report.page import page


def report(folder: Path, output: Path | None) -> None:
    """One self-contained HTML page of all that other subcommands left in DIR with --out DIR."""
    output = output or folder / NAME
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
