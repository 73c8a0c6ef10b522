"""The figures of a table as text, the same in the terminal, on a page and in a document. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fastio_bench.report.table import PAPER, Cell, ResultTable

NOTHING = "-"
_WHOLE = 999.5  # from here on three digits are less than the whole number


def texts(exhibit: ResultTable, row: Sequence[Cell]) -> list[str]:
    """A row of the exhibit; a paper's figures are shown as they were printed, all others rounded."""
    if exhibit.origin == PAPER:
        return [f"{cell:,.10g}" if isinstance(cell, float) else text(cell) for cell in row]
    return [text(cell) for cell in row]


def text(cell: Cell) -> str:
    """Words as they are, whole numbers with separators, others to three significant digits, whole from 1,000 on."""
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
    """Whether a column of that name holds numbers, which stand right."""
    return column.endswith("*")


def heading(column: str) -> str:
    """The column's name as it is shown."""
    return column.removesuffix("*")


def _number(value: float) -> str:
    if not math.isfinite(value) or value == 0:
        return NOTHING if math.isnan(value) else f"{value:.0f}"
    if abs(value) >= _WHOLE:
        return f"{value:,.0f}"
    return f"{value:#.3g}".rstrip(".").replace("e-0", "e-")
