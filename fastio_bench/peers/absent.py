"""Lists the known peers without a figure in a run of ``fastio-bench peers``, and why. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fastio_bench.peers import catalogue
from fastio_bench.report.documents import Document
from fastio_bench.report.table import Cell, ResultTable

_COMMAND = "peers"


def tables(document: Document) -> Iterator[ResultTable]:
    """One table, if the document is such a run and a peer is missing. Variants of a peer do not count."""
    asked = document.settings.get("tools")
    if document.command != _COMMAND or not isinstance(asked, dict):
        return
    shown = {summary.tool for summary in document.summaries}
    rows: list[list[Cell]] = []
    for peer in catalogue.every():
        if peer.name in shown or peer.variant_of:
            continue
        reasons = dict.fromkeys(failure.reason for failure in document.failures if failure.tool == peer.name)
        if peer.name not in asked:
            reasons = {f"not asked for{' (--quick)' if document.settings.get('quick') else ''}": None}
        rows.append([peer.name, "; ".join(reasons) or "the run ended before it"])
    if rows:
        yield ResultTable("peers-absent", "Peers without a figure in this run", ("tool", "why"), rows)
