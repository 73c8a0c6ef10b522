"""The plots of a report's page: bandwidth over size, IOef, what the dictionaries learned. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

from fastio.dicts import Explanation
from fastio_bench.harness.stats import Summary
from fastio_bench.io import sweep
from fastio_bench.machine import disk_limit
from fastio_bench.peers import compare
from fastio_bench.report import findings_tables, summary_tables, svg
from fastio_bench.report.documents import Document

MARKERS = "os^Dvp*X<"
PATCH, DASHES = "patch", "dashes"
_MIB = 1 << 20
PANEL = 400  # CSS pixels: two beside each other on a desk, one on a phone
_IOEF_SIZE = 4 * 256 * 56 * 56 * 4  # bytes: the paper's table 5 is of batch 4
_STEPS = ((1.02, "fastest"), (1.1, "to 1.1 x"), (1.3, "to 1.3 x"), (2.0, "to 2 x"), (4.0, "to 4 x"), (0.0, "beyond"))
_LIMITS = {  # of a sweep's works, those that the disk itself bounds
    sweep.DURABLE: "write",
    sweep.COLD: "read",
    compare.DURABLE: "write",
    compare.COLD: "read",
}


@dataclass(frozen=True)
class Plot:
    """One figure: ``kind`` names what it shows, ``title`` stands above it, ``wide`` ones scroll on a phone."""

    kind: str
    title: str
    svg: str
    wide: bool = False


@dataclass(frozen=True)
class Gallery:
    """Plots of one kind. ``legend``: how each sign looks, its colour (a variable of page.css) and what it means."""

    title: str
    text: str
    legend: Sequence[tuple[str, str, str]]
    plots: Sequence[Plot]


def bandwidths(document: Document, limits: dict[str, float]) -> Iterator[Gallery]:
    """A sweep's bandwidth over the size and its IOef. ``limits`` are the disk's, bytes a second by write and read."""
    if not summary_tables.is_sweep(document.summaries):
        return
    tools = [tool for tool in summary_tables.tools(document.summaries) if tool != disk_limit.TOOL]
    bounded = bool(limits) or disk_limit.TOOL in summary_tables.tools(document.summaries)
    legend = [(PATCH, f"series-{number % svg.SERIES}", tool) for number, tool in enumerate(tools)]
    works = summary_tables.works(document.summaries)
    lines, bars = [], []
    for number, work in enumerate(works):
        own = [summary for summary in document.summaries if summary.work == work]
        name = f"{document.slug}-{number}"
        lines.append(Plot("bandwidth", work, _lines(name, work, own, tools, limits.get(_LIMITS.get(work, ""), 0.0))))
        taken = _one_size(own)
        shown = f"{work}, {summary_tables.size(taken[0].nbytes)} MiB"
        values = {summary.tool: summary_tables.io_efficiency(summary) for summary in taken}
        bars.append(Plot("IOef", shown, _bars(f"{name}-ioef", f"IOef by tool: {shown}", values, tools)))
    dashed = [(DASHES, "ink", "the disk's limit")] if bounded else []
    text = "Medians of interleaved rounds."
    if bounded:
        text += " The dashed line is what the disk gives to plain direct writes and reads."
    yield Gallery("Bandwidth over size", text, [*legend, *dashed], lines)
    text = "IOef is MB/s for each core that is kept busy (Fastensor, section 3.3): more is better."
    yield Gallery("I/O efficiency", text, (), bars)


def comparison(document: Document) -> Iterator[Gallery]:
    """Where there is no sweep: the tools' bandwidth at the largest workload, by work."""
    measured = [summary for summary in document.summaries if summary.work not in compare.MEMORY.values()]
    tools, works = summary_tables.tools(measured), summary_tables.works(measured)
    if len(tools) < 2 or len(works) < 2 or summary_tables.is_sweep(document.summaries):
        return
    largest = max(measured, key=lambda summary: summary.nbytes)
    plots = []
    for number, work in enumerate(works):
        own = {s.tool: s.bandwidth / 1e6 for s in measured if (s.work, s.workload) == (work, largest.workload)}
        if own:
            description = f"MB/s by tool: {work}, {largest.workload}"
            plots.append(Plot("comparison", work, _bars(f"{document.slug}-{number}", description, own, tools)))
    text = f"{largest.workload}, {largest.nbytes / 1e6:,.0f} MB; medians of interleaved rounds."
    yield Gallery("Side by side, MB/s", text, (), plots)


def disk_limits(documents: Iterable[Document]) -> dict[str, float]:
    """The disk's own bytes a second by write and read: the fastest round of whatever measured them."""
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


def dictionary(document: Document) -> Iterator[Gallery]:
    """What ``tune`` learned as heat maps: tools by sizes, a map for each work."""
    found = document.findings.get("learned")
    if not found:
        return
    maps: dict[str, list[tuple[str, Explanation]]] = {}
    for label, answer in findings_tables.learned(found):
        thing, _, work = label.rpartition(", ")
        maps.setdefault(work, []).append((thing.removeprefix("one tensor, "), answer))
    plots = [
        Plot("dictionary", work, _map(f"{document.slug}-{number}", work, answers))
        for number, (work, answers) in enumerate(maps.items())
    ]
    text = "How many times as long as the fastest tool each one takes, by what they know; ● is the tool they use now."
    legend = [(PATCH, f"heat-{step}", name) for step, (_, name) in enumerate(_STEPS)]
    yield Gallery("The dictionaries", text, legend, plots)


def _lines(name: str, work: str, summaries: Sequence[Summary], tools: Sequence[str], bound: float) -> str:
    with svg.drawing(PANEL, 250) as figure:
        axes = figure.add_subplot()
        for number, tool in enumerate(tools):
            points = sorted((s.nbytes / _MIB, s.bandwidth / 1e6) for s in summaries if s.tool == tool)
            if points:
                sizes, speeds = zip(*points, strict=True)
                marker = MARKERS[number % len(MARKERS)]
                axes.plot(sizes, speeds, color=svg.series(number), marker=marker, ms=4.5, lw=1.6)
        own = sorted((s.nbytes / _MIB, s.bandwidth / 1e6) for s in summaries if s.tool == disk_limit.TOOL)
        dashes: dict[str, Any] = {"color": svg.INK, "lw": 1.2, "ls": (0, (4, 3)), "gid": f"limit-{name}"}
        if len(own) > 1:
            axes.plot(*zip(*own, strict=True), **dashes)
        elif own or bound:
            axes.axhline(own[0][1] if own else bound / 1e6, **dashes)
        every = sorted({summary.nbytes / _MIB for summary in summaries})
        axes.set_xscale("log", base=2)
        shown = every[:: -(-len(every) // 6)]
        axes.set_xticks(shown, [summary_tables.size(round(size * _MIB)) for size in shown])
        axes.set_xticks([], minor=True)
        axes.set(xlabel="MiB", ylabel="MB/s", ylim=(0, None))
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.grid(axis="y")
        return svg.render(figure, name, f"Bandwidth over size by tool: {work}")


def _one_size(summaries: Sequence[Summary]) -> list[Summary]:
    """Those of the paper's size, or of the nearest that was measured."""
    nearest = min({summary.nbytes for summary in summaries}, key=lambda nbytes: abs(nbytes - _IOEF_SIZE))
    return [summary for summary in summaries if summary.nbytes == nearest]


def _bars(name: str, description: str, values: Mapping[str, float | None], tools: Sequence[str]) -> str:
    kept = [tool for tool in tools if values.get(tool) is not None]
    with svg.drawing(PANEL, 52 + 26 * len(kept)) as figure:
        axes = figure.add_subplot()
        for place, tool in enumerate(kept):
            value = values[tool] or 0.0
            axes.barh(place, value, 0.68, color=svg.series(tools.index(tool)))
            text = f"{value:,.0f}"
            axes.annotate(text, (value, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
        axes.set_yticks(range(len(kept)), list(map(svg.short, kept)))
        axes.set_ylim(len(kept) - 0.4, -0.6)
        axes.set_xlim(0, 1.14 * max((values[tool] or 0.0 for tool in kept), default=1.0))
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        return svg.render(figure, name, description)


def _map(name: str, work: str, answers: Sequence[tuple[str, Explanation]]) -> str:
    tools = list(dict.fromkeys(entry.tool for _, answer in answers for entry in answer.entries))
    with svg.drawing(PANEL, 64 + 27 * len(tools)) as figure:
        axes = figure.add_subplot()
        for column, (_, answer) in enumerate(answers):
            for entry in answer.entries:
                row = tools.index(entry.tool)
                cell, ink = svg.heat(_step(entry.relative))
                axes.add_patch(_cell(column, row, cell))
                used = " ●" if entry.tool == answer.tool else ""
                text = f"{entry.relative:.2f}{used}" if entry.relative < 100 else ">99"
                axes.text(column, row, text, color=ink, ha="center", va="center", fontsize=9)
        axes.set_xlim(-0.5, len(answers) - 0.5)
        axes.set_ylim(len(tools) - 0.5, -0.5)
        axes.set_xticks(range(len(answers)), [fill(svg.short(thing), 12) for thing, _ in answers])
        axes.set_yticks(range(len(tools)), list(map(svg.short, tools)))
        axes.tick_params(length=0)
        axes.spines["bottom"].set_visible(False)
        return svg.render(figure, name, f"What the dictionaries learned: {work}")


def _cell(column: int, row: int, color: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=color, edgecolor=svg.PAPER, linewidth=1.5)


def _step(relative: float) -> int:
    return next((step for step, (most, _) in enumerate(_STEPS) if relative <= most), len(_STEPS) - 1)
