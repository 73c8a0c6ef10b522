"""Charts of samples: bandwidth over size and IOef for a sweep, tools side by side for anything else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fastio_bench.harness.stats import Summary
from fastio_bench.io import sweep
from fastio_bench.machine import disk_limit
from fastio_bench.peers import compare
from fastio_bench.report import charts, summary_tables, svg, tool_colors
from fastio_bench.report.charts import BAR, Chart, Color, Sheet, Sign
from fastio_bench.report.documents import Document

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "os^Dvp*X<"
_MIB = 1 << 20
_HEIGHT = 250  # CSS pixels
_IOEF_SIZE = 4 * 256 * 56 * 56 * 4  # bytes: the paper's table 5 is of batch 4
_LIMITS = {  # by work, which limit of the disk bounds it
    sweep.DURABLE: "write",
    sweep.COLD: "read",
    compare.DURABLE: "write",
    compare.COLD: "read",
}


def bandwidths(summaries: Sequence[Summary], limits: Mapping[str, float]) -> Iterator[Sheet]:
    """A sweep's bandwidth over size and its IOef, by work. ``limits``: the disk's bytes a second by "write", "read"."""
    if not summary_tables.is_sweep(summaries):
        return
    taken = summary_tables.tools(summaries)
    tools = [tool for tool in taken if tool != disk_limit.TOOL]
    bounded = bool(limits) or disk_limit.TOOL in taken
    lines, bars = [], []
    for work in summary_tables.works(summaries):
        own = [summary for summary in summaries if summary.work == work]
        bound = limits.get(_LIMITS.get(work, ""), 0.0)
        lines.append(Chart(work, _HEIGHT, partial(_lines, own, tools, bound)))
        nearest = min((summary.nbytes for summary in own), key=lambda nbytes: abs(nbytes - _IOEF_SIZE))
        values = {s.tool: summary_tables.io_efficiency(s) for s in own if s.nbytes == nearest}
        bars.append(_bars(f"{work}, {summary_tables.size(nearest)} MiB", values, tools))
    text = "Medians of interleaved rounds."
    if bounded:
        text += " The dashed line is what the disk gives to plain direct writes and reads."
    dashed = [Sign("dashes", "ink", "the disk's limit")] if bounded else []
    numbers = [tool_colors.number(tool) for tool in tools]
    yield Sheet("bandwidth", "Bandwidth over size", text, tools, lines, dashed, numbers)
    text = "IOef is MB/s for each core that is kept busy (Fastensor, section 3.3): more is better."
    yield Sheet("IOef", "I/O efficiency", text, (), bars)


def comparison(summaries: Sequence[Summary]) -> Iterator[Sheet]:
    """The tools' bandwidth at the largest workload, by work, where there is no sweep."""
    measured = [summary for summary in summaries if summary.work not in compare.MEMORY.values()]
    tools, works = summary_tables.tools(measured), summary_tables.works(measured)
    if len(tools) < 2 or len(works) < 2 or summary_tables.is_sweep(summaries):
        return
    largest = max(measured, key=lambda summary: summary.nbytes)
    bars = []
    for work in works:
        own = {s.tool: s.bandwidth / 1e6 for s in measured if (s.work, s.workload) == (work, largest.workload)}
        bars += [_bars(work, own, tools)] if own else []
    text = f"{largest.workload}, {largest.nbytes / 1e6:,.0f} MB; medians of interleaved rounds."
    yield Sheet("comparison", "Side by side, MB/s", text, (), bars)


def disk_limits(documents: Iterable[Document]) -> dict[str, float]:
    """The disk's bytes a second by "write" and "read": the fastest round of all that measured them."""
    found: dict[str, float] = {}
    for document in documents:
        for summary in document.summaries:
            if summary.work == disk_limit.TOOL:
                kind = summary.tool
            elif summary.tool == disk_limit.TOOL:
                kind = "read" if "read" in summary.work or "load" in summary.work else "write"
            else:
                continue
            found[kind] = max(found.get(kind, 0.0), summary.best_bandwidth)
    return found


def _lines(summaries: Sequence[Summary], tools: Sequence[str], bound: float, axes: Axes, color: Color) -> None:
    def points(tool: str) -> list[tuple[float, float]]:
        return sorted((s.nbytes / _MIB, s.bandwidth / 1e6) for s in summaries if s.tool == tool)

    for number, tool in enumerate(tools):
        if found := points(tool):
            marker = MARKERS[number % len(MARKERS)]
            axes.plot(*zip(*found, strict=True), color=color(tool_colors.number(tool)), marker=marker, ms=4.5, lw=1.6)
    own = points(disk_limit.TOOL)
    dashes: dict[str, Any] = {"color": svg.INK, "lw": 1.2, "ls": (0, (4, 3)), "gid": "limit"}
    if len(own) > 1:
        axes.plot(*zip(*own, strict=True), **dashes)
    elif own or bound:
        axes.axhline(own[0][1] if own else bound / 1e6, **dashes)
    charts.scale_sizes(axes, {summary.nbytes for summary in summaries})


def _bars(title: str, values: Mapping[str, float | None], tools: Sequence[str]) -> Chart:
    kept = {tool: value for tool in tools if (value := values.get(tool)) is not None}

    def draw(axes: Axes, color: Color) -> None:
        for place, (tool, value) in enumerate(kept.items()):
            axes.barh(place, value, BAR, color=color(tool_colors.number(tool)))
            charts.say(axes, f"{value:,.0f}", value, place)
        charts.name_rows(axes, list(map(svg.short, kept)))
        charts.hide_scale(axes, 1.14 * max(kept.values(), default=1.0))

    return Chart(title, charts.rows(len(kept)), draw)
