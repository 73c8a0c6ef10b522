"""Puts our figures and a paper's into one table, as comparable ratios. Each row has its origin. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fastio_bench.report.documents import Document, checked
from fastio_bench.report.table import Cell, ResultTable

ORIGIN = "each row says whose"
Row: TypeAlias = list[Cell]
"""The origin (one of :mod:`fastio_bench.report.table`'s four labels), what was measured, the figures."""


@dataclass(frozen=True)
class Question:
    """One table: ``theirs`` returns the paper's rows, ``ours`` those of each document that has any."""

    name: str
    title: str
    columns: Sequence[str]
    source: str
    note: str
    ours: Callable[[Document], Iterator[Row]]
    theirs: Callable[[], Iterator[Row]]

    def tables(self, documents: Iterable[Document]) -> Iterator[ResultTable]:
        """Our rows above the paper's, if there are any of ours. Raises DocumentError if findings are damaged."""
        ours = [row for document in documents for row in checked(document, lambda one: list(self.ours(one)))]
        if ours:
            rows, columns = [*ours, *self.theirs()], ("figures", *self.columns)
            yield ResultTable(f"beside-{self.name}", self.title, columns, rows, ORIGIN, self.source, self.note)


def figure(cell: Cell) -> float | None:
    """A figure of a table as a float; None for text, as a paper's "OOM"."""
    return float(cell) if isinstance(cell, (int, float)) else None


def over(one: float | None, other: float | None, factor: float = 1.0) -> float | None:
    """The ratio, if both are known."""
    return factor * one / other if one is not None and other else None


def found(document: Document, finding: str) -> list[Mapping[str, Any]]:
    """The rows of a finding; none if it has another shape (from another command)."""
    told = document.findings.get(finding)
    return [one for one in told if isinstance(one, Mapping)] if isinstance(told, list) else []


def trained(document: Document, batch: int | None = None) -> str:
    """What a run of ``offload`` trained: network, sizes, ``batch``, and host memory if it used some."""
    told = document.settings | ({} if batch is None else {"batch": batch})
    names = (
        ("width", "batch") if "memory_limit" in told else ("depth", "width", "batch")
    )  # there, depths are the answer
    sizes = [f"{name} {told[name]}" for name in names if name in told]
    sizes += [f"host memory {told['host_budget'] >> 20:,} MiB first"] if told.get("host_budget") else []
    return ", ".join([str(told.get("model", "a network")), *sizes])
