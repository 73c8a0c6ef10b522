"""Formats the cells of a table as text, for the terminal, the page and Markdown. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fastio_bench.report.table import PAPER, Cell, ResultTable

NOTHING = "-"
_WHOLE = 999.5  # from here on the whole number has more than three digits


def texts(table: ResultTable, row: Sequence[Cell]) -> list[str]:
    """The texts of a row. A paper's figures are shown as printed, all others rounded."""
    if table.origin == PAPER:
        return [f"{cell:,.10g}" if isinstance(cell, float) else text(cell) for cell in row]
    return [text(cell) for cell in row]


def text(cell: Cell) -> str:
    """Text as it is, integers with separators, floats with three significant digits, without decimals from 1,000 on."""
    if cell is None:
        return NOTHING
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return _number(cell)
    return cell


def is_number(column: str) -> bool:
    """Whether a column of that name holds numbers, which are right-aligned."""
    return column.endswith("*")


def heading(column: str) -> str:
    """The column's displayed name."""
    return column.removesuffix("*")


def _number(value: float) -> str:
    if not math.isfinite(value) or value == 0:
        return NOTHING if math.isnan(value) else f"{value:.0f}"
    if abs(value) >= _WHOLE:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".").replace("e-0", "e-")
