"""Chooses the tables of a document: its command's own, and those from findings and summaries. Pure."""

from __future__ import annotations

from typing import Any

from fastio_bench.peers import absent
from fastio_bench.report import findings_tables, summary_tables
from fastio_bench.report.documents import Document
from fastio_bench.report.table import ResultTable


def tables(document: Document) -> list[ResultTable]:
    """Failures and goals first, then all others. Every figure is listed only if no other table shows them."""
    findings = _findings(document)
    goals = findings_tables.tables({"goals": findings.pop("goals", None)})
    failures = [summary_tables.failures(document.failures)] if document.failures else []
    shown = [*failures, *goals, *document.tables, *_summed(document), *absent.tables(document)]
    return [table for table in (*shown, *findings_tables.tables(findings)) if table.rows]


def untold(document: Document) -> dict[str, Any]:
    """Findings that no table shows."""
    return {
        name: found
        for name, found in _findings(document).items()
        if found and name not in findings_tables.RAW and not findings_tables.tables({name: found})
    }


def _findings(document: Document) -> dict[str, Any]:
    """The findings, without those that have a table of the same name."""
    named = {table.name for table in document.tables}
    return {name: found for name, found in document.findings.items() if name not in named}


def _summed(document: Document) -> list[ResultTable]:
    """Works side by side, or every figure of a single work; nothing if the command made tables itself."""
    if document.tables or not document.summaries:
        return []
    several = len(summary_tables.works(document.summaries)) > 1
    if several:
        return summary_tables.sides(document.summaries, document.failures)
    return [summary_tables.figures(document.summaries)]
