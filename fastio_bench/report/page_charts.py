"""On a report's page: the charts that commands also leave as files."""

from __future__ import annotations

from collections.abc import Iterator

from fastio_bench.offload import charts as offload_charts
from fastio_bench.report import svg
from fastio_bench.report.charts import Sheet
from fastio_bench.report.documents import Document
from fastio_bench.report.page_plots import PANEL, PATCH, Gallery, Plot
from fastio_bench.tools import charts as tools_charts
from fastio_bench.tools import tune_charts


def galleries(document: Document) -> Iterator[Gallery]:
    """A gallery for each sheet, of whatever tables and findings the document has. Needs matplotlib."""
    sheets = (
        *tools_charts.sheets(document.exhibits),
        *tune_charts.sheets(document.findings),
        *offload_charts.sheets(document.findings),
    )
    for sheet in sheets:
        signs = [(PATCH, f"series-{number % svg.SERIES}", name) for number, name in enumerate(sheet.series)]
        legend = signs if len(signs) > 1 else []
        yield Gallery(sheet.title, sheet.text, legend, [*_plots(f"{document.slug}-{sheet.name}", sheet)])


def _plots(slug: str, sheet: Sheet) -> Iterator[Plot]:
    for number, chart in enumerate(sheet.charts):
        with svg.drawing(PANEL, chart.height) as figure:
            chart.draw(figure.add_subplot(), svg.series)
            drawn = svg.render(figure, f"{slug}-{number}", f"{sheet.title}: {chart.title}")
        yield Plot(sheet.name, chart.title, drawn)
