"""Ours and a paper's figures in one table, as ratios that can be compared: a row each, which says whose it is. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from fastio_bench.report.documents import Document, checked
from fastio_bench.report.table import Cell, ResultTable

ORIGIN = "each row says whose"
Row: TypeAlias = list[Cell]
"""The label of the figures (one of :mod:`fastio_bench.report.table`'s four), what it is of, the figures."""


@dataclass(frozen=True)
class Question:
    """What one table asks: of the paper (``theirs``), and of each document that may have an answer (``ours``)."""

    name: str
    title: str
    columns: Sequence[str]
    source: str
    note: str
    ours: Callable[[Document], Iterator[Row]]
    theirs: Callable[[], Iterator[Row]]

    def exhibits(self, documents: Iterable[Document]) -> Iterator[ResultTable]:
        """Our rows above the paper's, if there are any of ours. Raises DocumentError where findings are damaged."""
        ours = [row for document in documents for row in checked(document, lambda one: list(self.ours(one)))]
        if ours:
            rows, columns = [*ours, *self.theirs()], ("figures", *self.columns)
            yield ResultTable(f"beside-{self.name}", self.title, columns, rows, ORIGIN, self.source, self.note)


def figure(cell: Cell) -> float | None:
    """A figure of a table; None for words, as a paper's "OOM"."""
    return float(cell) if isinstance(cell, (int, float)) else None


def over(one: float | None, other: float | None, factor: float = 1.0) -> float | None:
    """How many times the other, where both are known."""
    return factor * one / other if one is not None and other else None


def found(document: Document, finding: str) -> list[Mapping[str, Any]]:
    """The rows of a finding; none where it is something else (a finding of that name of another command)."""
    told = document.findings.get(finding)
    return [one for one in told if isinstance(one, Mapping)] if isinstance(told, list) else []


def trained(document: Document, batch: int | None = None) -> str:
    """What a run of ``offload`` trained, in how much host memory where it had some; ``batch``: of those it had."""
    told = document.settings | ({} if batch is None else {"batch": batch})
    names = (
        ("width", "batch") if "memory_limit" in told else ("depth", "width", "batch")
    )  # there, depths are the answer
    sizes = [f"{name} {told[name]}" for name in names if name in told]
    sizes += [f"host memory {told['host_budget'] >> 20:,} MiB first"] if told.get("host_budget") else []
    return ", ".join([str(told.get("model", "a network")), *sizes])
