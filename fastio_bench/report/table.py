"""The result table: rows, columns and the origin of the figures, for the terminal, the page, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

MEASURED, PAPER, SIMULATED, CALIBRATED = "measured here", "from the paper", "simulated", "calibrated"

Cell: TypeAlias = str | int | float | None


@dataclass(frozen=True, slots=True)
class ResultTable:
    """One table. ``name`` is a slug, unique within its command; a column whose name ends with * holds numbers.

    ``origin`` is one of the four labels above, or says that each row has its own (:mod:`fastio_bench.papers.beside`).
    Numbers are rounded only for display. ``source`` names the paper's table or figure that the table answers or
    repeats. ``note`` is text for the reader.
    """

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    origin: str = MEASURED
    source: str = ""
    note: str = ""

    @property
    def reference(self) -> str:
        """The source as text: its name for a paper's own table, else "cf." and its name."""
        return self.source if self.origin == PAPER or not self.source else f"cf. {self.source}"

    def document(self) -> dict[str, Any]:
        """The table for JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "origin": self.origin,
            "source": self.source,
            "note": self.note,
        }
