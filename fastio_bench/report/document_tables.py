"""Which tables show a document: the ones its command made, and those that follow from findings and summaries. Pure."""

from __future__ import annotations

from typing import Any

from fastio_bench.peers import absent
from fastio_bench.report import findings_tables, summary_tables
from fastio_bench.report.documents import Document
from fastio_bench.report.table import ResultTable


def tables(document: Document) -> list[ResultTable]:
    """Failures and goals first, then everything else but the long table of every figure, where others show them."""
    findings = _findings(document)
    goals = findings_tables.exhibits({"goals": findings.pop("goals", None)})
    failures = [summary_tables.failures(document.failures)] if document.failures else []
    shown = [*failures, *goals, *document.exhibits, *_summed(document), *absent.exhibits(document)]
    return [exhibit for exhibit in (*shown, *findings_tables.exhibits(findings)) if exhibit.rows]


def untold(document: Document) -> dict[str, Any]:
    """Findings that no table shows."""
    return {
        name: found
        for name, found in _findings(document).items()
        if found and name not in findings_tables.RAW and not findings_tables.exhibits({name: found})
    }


def _findings(document: Document) -> dict[str, Any]:
    """Findings but for those that an exhibit of that name shows already."""
    named = {exhibit.name for exhibit in document.exhibits}
    return {name: found for name, found in document.findings.items() if name not in named}


def _summed(document: Document) -> list[ResultTable]:
    """Works side by side, or every figure where there is one work; nothing where a command made tables itself."""
    if document.exhibits or not document.summaries:
        return []
    several = len(summary_tables.works(document.summaries)) > 1
    if several:
        return summary_tables.sides(document.summaries, document.failures)
    return [summary_tables.figures(document.summaries)]
