"""Charts of hybrid training: the simulated iteration of each way, one below the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from fastio.hybrid.simulation.timeline import LANES
from fastio_bench.report import charts
from fastio_bench.report.charts import Chart, Lane, Sheet

_SERIES = ("forward", "gradient", "copy", "late copy", "update", "backward")


def sheets(findings: Mapping[str, Any]) -> Iterator[Sheet]:
    """The timelines of :mod:`fastio_bench.papers.memferry_timelines`, if the findings have them."""
    drawn = [_chart(one["title"], one["ways"]) for one in findings.get("timelines") or ()]
    if drawn:
        text = "Simulated: what computes, copies and updates, by way; layers that follow each other are drawn as one."
        yield Sheet("schedule", "Timelines of an iteration", text, _SERIES, drawn)


def _chart(title: str, ways: Mapping[str, Mapping[str, Any]]) -> Chart:
    groups = {f"{way}: {told['iteration_s'] * 1e3:,.1f} ms": _lanes(told["spans"]) for way, told in ways.items()}
    return Chart(title, charts.lane_rows(groups), partial(charts.draw_lanes, groups), wide=True)


def _lanes(spans: list[Any]) -> list[Lane]:
    return [
        Lane(lane, [(begin, end, _SERIES.index(what)) for at, what, begin, end in spans if at == lane])
        for lane in LANES
    ]
