"""The options of ``fastio-bench papers`` and its help, without what it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command()
@click.argument(
    "folder", metavar="[DIR]", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def papers(**given: Any) -> None:
    """The papers' tables and figures, and what answers each: theirs, ours, the ratio.

    Models and simulations are computed now, in seconds. What has to be measured is read from the documents that other
    subcommands left in DIR with --out DIR; without them, the row says which command makes it.
    """
    from fastio_bench.papers.command import papers as run

    run(**given)
