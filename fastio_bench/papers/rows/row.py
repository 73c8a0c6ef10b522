"""One row of ``fastio-bench papers``, and how its own figure is found. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fastio_bench.papers import figures
from fastio_bench.papers.beside import figure
from fastio_bench.report.documents import Document, checked
from fastio_bench.report.table import Cell

MEASURED, MODEL, DEVICE = "measured", "model", "simulated device"
NOTHING, NONE = "no result of the paper", "not answered"
PAPERS = "fastio-bench papers"


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of a paper, of its table or figure ``place``: ``what`` with its unit, and ``theirs`` if it is a number.

    ``model`` computes ours. ``stored`` returns ours from a document of the command line ``line``, None if that has
    none; ``by`` says how such a document came to it. A row with neither has a ``reason``: ``by`` is then `NONE`, or
    `NOTHING` for drawings and set-ups. A reason beside a model or a document says how ours and theirs differ.
    """

    paper: str
    place: str
    what: str
    theirs: float | None = None
    model: Callable[[], float | None] | None = None
    stored: Callable[[Document], float | None] | None = None
    line: str = PAPERS
    by: str = ""
    reason: str = ""

    @property
    def way(self) -> str:
        """By what ours is had, if it is."""
        if self.by:
            return self.by
        return MODEL if self.model is not None else MEASURED if self.stored is not None else NONE

    @property
    def command(self) -> str:
        """The command line that gives ours; empty if none does."""
        return self.line if self.model is not None or self.stored is not None else ""

    def cells(self, documents: Iterable[Document]) -> list[Cell]:
        """The paper, the place, what, theirs, ours, ours over theirs, by what, the command or the reason.

        Raises DocumentError for a damaged document.
        """
        ours, way = None, self.way
        if self.model is not None:
            ours = self.model()
        elif self.stored is not None:
            newest = self._newest(documents, self.stored)
            ours, way = newest if newest is not None else (None, f"{way}: no document")
        ratio = ours / self.theirs if ours is not None and self.theirs else None
        told = "; ".join(filter(None, (self.command, self.reason)))
        return [self.paper, self.place, self.what, self.theirs, ours, ratio, way, told]

    def _newest(
        self, documents: Iterable[Document], stored: Callable[[Document], float | None]
    ) -> tuple[float, str] | None:
        """Ours of the newest document that has it, and by what, with the date (UTC). Those of --quick come last."""
        found = [(document, checked(document, stored)) for document in documents]
        known = [
            (not document.settings.get("quick"), document.measured.date, ours)
            for document, ours in found
            if ours is not None
        ]
        if not known:
            return None
        whole, date, ours = max(known)
        return ours, f"{self.way} {date[:10]}{'' if whole else ', --quick'}".strip()


def cell(name: str, key: str, column: int) -> float:
    """The number in the first row ``key`` of the paper's table of that name, as printed there."""
    (table,) = (table for table in figures.tables() if table.name == name)
    row = next(row for row in table.rows if str(row[0]) == key)
    number = figure(row[column])
    assert number is not None
    return number
