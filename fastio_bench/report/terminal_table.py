"""An exhibit in the terminal."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from fastio_bench.report import cells
from fastio_bench.report.table import ResultTable
from fastio_bench.report.terminal_tables import blank


def table(exhibit: ResultTable) -> Group:
    """The exhibit, and below it where its figures come from (a table's own caption would be as narrow as the table)."""
    shown = blank(exhibit.title, *exhibit.columns)
    for row in exhibit.rows:
        shown.add_row(*cells.texts(exhibit, row))
    told = "; ".join(filter(None, (exhibit.origin, exhibit.reference, exhibit.note)))
    return Group(shown, Text(told, style="italic"), "")
