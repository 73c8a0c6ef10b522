"""The options of ``fastio-bench report`` and its help, without what it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

NAME = "report.html"


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"Where to write the page.  [default: {NAME} in DIR]",
)
def report(**given: Any) -> None:
    """One self-contained HTML page of all that other subcommands left in DIR with --out DIR.

    Machine, settings, tables and plots; needs no network and no scripts, and reads well on a phone, light and dark.
    Two runs of peers with a workload in common are compared: give the first another name before the same is run again.
    """
    from fastio_bench.report.command import report as run

    run(**given)
