"""Charts of ``fastio-bench tools``, from its tables: the best tools, and the results of choosing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fastio_bench.report import cells, charts, svg, tool_colors
from fastio_bench.report.charts import BAR, Chart, Color, Sheet
from fastio_bench.report.table import Cell, ResultTable
from fastio_bench.tools.replays import ALL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SPREAD = "spread-"
_TIME, _CASES = "% of best time", "% of cases"
_AUTO, _LUCK, _ALONE = "auto, by what its choices usually take", "auto, as timed", "one tool for everything"
_NOT_TOOLS = {"MB", "rebuilds", "first", "best"}
_ORACLES = {"replayed": "simulated: a recorded trace", "live": "measured here: live calls"}


def sheets(tables: Sequence[ResultTable]) -> Iterator[Sheet]:
    """The sheets for the tables that are there."""
    named = {table.name: table for table in tables if table.rows}
    spreads = [own for name, own in named.items() if name.startswith(_SPREAD) and _has(own, "MB", "rebuilds")]
    if spreads:
        tools = list(dict.fromkeys(tool for table in spreads for tool in _tools(table)))
        text = "The share of the rebuilds in which each tool was the best, by size; in brackets, how many rebuilds."
        drawn = [_spread(table, tools) for table in spreads]
        numbers = [tool_colors.number(tool) for tool in tools]
        yield Sheet("spread", "The best tool, dictionaries rebuilt again and again", text, tools, drawn, (), numbers)
    if "reach" in named and _has(named["reach"], "way"):
        text = (
            "What ways of choosing reach of the best possible time, which the best tool of each rebuild makes up, luck "
            "included; and in how many cases they chose that tool."
        )
        drawn = list(_reach(named["reach"]))
        yield Sheet("reach", "Choosing beside always the best", text, (_TIME, _CASES), drawn)
    lines = ((named[name], title) for name, title in _ORACLES.items() if name in named)
    drawn = [_oracle(own, title) for own, title in lines if _has(own, "work", "total", "with luck", "oracle")]
    if drawn:
        text = "The total time over that of an oracle, which uses the tool that usually takes the least: 1 is the best."
        yield Sheet("oracle", "The tuner beside the oracle", text, (_AUTO, _LUCK, _ALONE), drawn)


def _has(table: ResultTable, *headings: str) -> bool:
    """Whether the table has these columns. Those of other versions may not."""
    return {*headings} <= {cells.heading(column) for column in table.columns}


def _column(table: ResultTable, heading: str) -> list[Cell]:
    """The cells under a heading."""
    place = [cells.heading(column) for column in table.columns].index(heading)
    return [row[place] for row in table.rows]


def _numbers(table: ResultTable, heading: str) -> list[float]:
    """As :func:`_column`, 0 for a gap."""
    return [float(cell or 0.0) for cell in _column(table, heading)]


def _tools(table: ResultTable) -> list[str]:
    return [name for name in map(cells.heading, table.columns) if name not in _NOT_TOOLS]


def _spread(table: ResultTable, tools: Sequence[str]) -> Chart:
    counts = _numbers(table, "rebuilds")
    sizes = [
        f"{cells.text(nbytes)} MB ({count:.0f})" for nbytes, count in zip(_numbers(table, "MB"), counts, strict=True)
    ]
    shares = [
        (tool, [100 * best / count for best, count in zip(_numbers(table, tool), counts, strict=True)])
        for tool in tools
        if tool in _tools(table)
    ]

    def draw(axes: Axes, color: Color) -> None:
        left = [0.0] * len(sizes)
        for tool, own in shares:
            axes.barh(range(len(sizes)), own, BAR, left=left, color=color(tool_colors.number(tool)))
            left = [before + share for before, share in zip(left, own, strict=True)]
        charts.name_rows(axes, sizes)
        axes.set(xlim=(0, 100), xlabel="% of the rebuilds")

    return Chart(table.name.removeprefix(_SPREAD), charts.rows(len(sizes) + 1), draw)


def _reach(table: ResultTable) -> Iterator[Chart]:
    ways = [svg.short(str(way)) for way in _column(table, "way")]
    for heading in map(cells.heading, table.columns):
        model, _, what = heading.rpartition(": ")
        if what != _TIME:
            continue
        bars = (_numbers(table, heading), _numbers(table, f"{model}: {_CASES}"))

        def draw(axes: Axes, color: Color, bars: Sequence[Sequence[float]] = bars) -> None:
            for number, own in enumerate(bars):
                places = [place + (number - 0.5) * 0.38 for place in range(len(ways))]
                axes.barh(places, own, 0.36, color=color(number))
                for value, place in zip(own, places, strict=True):
                    charts.say(axes, f"{value:.0f}", value, place)
            charts.name_rows(axes, ways)
            axes.set(xlim=(0, 112), xlabel="%", xticks=range(0, 101, 25))

        yield Chart(model, charts.rows(len(ways) + 1) + 8 * len(ways), draw)


def _oracle(table: ResultTable, title: str) -> Chart:
    works = [str(work) for work in _column(table, "work")]
    place = works.index(ALL) if ALL in works else 0
    headings = [cells.heading(column) for column in table.columns]
    bars = {"auto": (0, _column(table, "total")[place]), "auto, as timed": (1, _column(table, "with luck")[place])}
    bars |= {tool: (2, table.rows[place][at]) for at, tool in enumerate(headings) if at > headings.index("oracle")}
    kept = {name: (number, float(value)) for name, (number, value) in bars.items() if value is not None}

    def draw(axes: Axes, color: Color) -> None:
        for row, (number, value) in enumerate(kept.values()):
            axes.barh(row, value, BAR, color=color(number))
            charts.say(axes, f"{value:.2f}", value, row)
        charts.name_rows(axes, list(map(svg.short, kept)))
        axes.set(xlim=(0, 1.15 * max(value for _, value in kept.values())), xlabel=f"x the oracle, {works[place]}")
        axes.grid(axis="x")

    return Chart(title, charts.rows(len(kept) + 1), draw)
