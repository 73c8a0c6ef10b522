"""Hybrid training on a report's page: the simulated iteration of each way, below each other. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fastio.hybrid.simulation.timeline import LANES
from fastio_bench.report import svg
from fastio_bench.report.documents import Document
from fastio_bench.report.page_plots import PATCH, Gallery, Plot

_COLORS = {"forward": 0, "backward": 5, "copy": 2, "late copy": 3, "gradient": 1, "update": 4}
_WIDE = 928  # CSS pixels


def galleries(document: Document) -> Iterator[Gallery]:
    """What :mod:`fastio_bench.hybrid.timelines` kept; nothing where a document has none."""
    plots = [
        Plot(
            "schedule", one["title"], _drawn(f"{document.slug}-schedule-{number}", one["title"], one["ways"]), wide=True
        )
        for number, one in enumerate(document.findings.get("timelines") or ())
    ]
    if plots:
        legend = [(PATCH, f"series-{number}", name) for name, number in _COLORS.items()]
        text = "Simulated: what computes, copies and updates, by way; layers that follow each other are drawn as one."
        yield Gallery("Timelines of an iteration", text, legend, plots)


def _drawn(name: str, title: str, ways: Mapping[str, Mapping[str, Any]]) -> str:
    with svg.drawing(_WIDE, 56 + 132 * len(ways)) as figure:
        panels = figure.subplots(len(ways), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (way, told) in zip(panels, ways.items(), strict=True):
            for what, number in _COLORS.items():
                for place, lane in enumerate(LANES):
                    own = [(a * 1e3, (b - a) * 1e3) for at, kind, a, b in told["spans"] if (at, kind) == (lane, what)]
                    axes.broken_barh(own, (place - 0.38, 0.76), color=svg.series(number), linewidth=0)
            axes.set_yticks(range(len(LANES)), LANES)
            axes.set_ylim(len(LANES) - 0.5, -0.5)
            axes.set_title(f"{way}: {told['iteration_s'] * 1e3:,.1f} ms", fontsize=9, weight="normal")
            axes.grid(axis="x")
        panels[-1].set_xlabel("ms")
        panels[-1].set_xlim(0, max(told["iteration_s"] for told in ways.values()) * 1e3)
        return svg.render(figure, name, f"Timelines of an iteration: {title}")
