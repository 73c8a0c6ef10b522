"""Draws the charts of a document for a report's page. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Iterator

from fastio_bench.hybrid import charts as hybrid_charts
from fastio_bench.offload import charts as offload_charts
from fastio_bench.offload import training_charts
from fastio_bench.report import sample_charts, svg
from fastio_bench.report.charts import Chart, Sheet
from fastio_bench.report.documents import Document
from fastio_bench.tools import charts as tools_charts
from fastio_bench.tools import tune_charts

_PANEL, _WIDE = 400, 928  # CSS pixels: two panels side by side on a desk, one on a phone; a wide one scrolls there


def sheets(document: Document, limits: dict[str, float]) -> Iterator[Sheet]:
    """Every sheet that the document has tables, findings or samples for. ``limits``: the disk's, bytes a second."""
    yield from sample_charts.bandwidths(document.summaries, limits)
    yield from sample_charts.comparison(document.summaries)
    yield from tune_charts.dictionary(document.findings)
    yield from tools_charts.sheets(document.tables)
    yield from tune_charts.sheets(document.findings)
    yield from offload_charts.sheets(document.findings)
    yield from training_charts.sheets(document.findings)
    yield from hybrid_charts.sheets(document.findings)


def drawings(document: Document, sheet: Sheet) -> list[tuple[Chart, str]]:
    """Every chart of the sheet with its ``<svg>`` element."""
    drawn = []
    for number, chart in enumerate(sheet.charts):
        name = f"{document.slug}-{sheet.name}-{number}"
        with svg.drawing(_WIDE if chart.wide else _PANEL, chart.height) as figure:
            chart.draw(figure.add_subplot(), svg.series)
            drawn.append((chart, svg.render(figure, name, f"{sheet.title}: {chart.title}")))
    return drawn
