"""Charts for a command's PNG files and for a report's page: the same drawing, in other colours. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, TypeAlias

from fastio_bench.report import plots, summary_tables, svg, tool_colors

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Color: TypeAlias = Callable[[int], str]
"""The colour of a series by its number."""

BAR = 0.62  # the part of a row's height that its bar takes
_MIB = 1 << 20
_ROW, _AROUND = 27, 46  # CSS pixels of a bar with its gap, and of the margins of a chart
_COLUMN = 4.6  # inches: the width of a chart in a file
_PIXELS = 84  # CSS pixels to an inch of a file: its text is larger than a page's
_SETTINGS: Any = {
    "text.parse_math": False,  # a $ in a name is a $
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.0,
    "grid.color": "0.88",
}


@dataclass(frozen=True)
class Chart:
    """One pair of axes, ``height`` CSS pixels high: ``draw(axes, color)`` fills them.

    A ``wide`` chart takes a whole row.
    """

    title: str
    height: int
    draw: Callable[[Axes, Color], None]
    wide: bool = False


@dataclass(frozen=True)
class Sign:
    """An entry of a legend on the page: its shape ("patch" or "dashes"), its colour in page.css, its meaning."""

    shape: str
    color: str
    text: str


@dataclass(frozen=True)
class Sheet:
    """Charts with one legend. ``name`` is a slug; ``series`` are names, with the colours ``numbers``, else in order.

    ``more`` are signs that only the page's legend has, besides those of the series.
    """

    name: str
    title: str
    text: str
    series: Sequence[str]
    charts: Sequence[Chart]
    more: Sequence[Sign] = ()
    numbers: Sequence[int] = ()

    @property
    def signs(self) -> list[Sign]:
        """The legend on the page. A single series needs none."""
        several = self.colored if len(self.series) > 1 else ()
        return [*(Sign("patch", f"series-{number % svg.SERIES}", name) for number, name in several), *self.more]

    @property
    def colored(self) -> list[tuple[int, str]]:
        """The number of each series' colour, and its name."""
        return list(zip(self.numbers or range(len(self.series)), self.series, strict=True))


@dataclass(frozen=True)
class Lane:
    """A row of a timeline: spans of (begin, end, number of the series), in seconds.

    Where spans may ``overlap`` they are translucent: the more there are at a time, the deeper the colour.
    """

    name: str
    spans: Sequence[tuple[float, float, int]] = field(repr=False)
    overlap: bool = False


def write(beginning: Path, sheets: Iterable[Sheet]) -> list[Path]:
    """Write one PNG a sheet, ``<beginning>-<sheet>.png``. Raises ImportError without matplotlib."""
    import matplotlib

    with matplotlib.rc_context(_SETTINGS):
        return [_write(plots.named(beginning, sheet.name), sheet) for sheet in sheets]


def _write(path: Path, sheet: Sheet) -> Path:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    wide = any(chart.wide for chart in sheet.charts)
    columns = 1 if wide else 3 if len(sheet.charts) == 3 else min(2, len(sheet.charts))
    lines = [sheet.charts[place : place + columns] for place in range(0, len(sheet.charts), columns)]
    heights = [max(chart.height for chart in line) / _PIXELS for line in lines]
    width = 2 if wide else max(columns, 1.5)
    figure = Figure(figsize=(_COLUMN * width, sum(heights) + 1.1), layout="constrained")
    grid = figure.subplots(len(lines), columns, squeeze=False, height_ratios=heights)
    for axes in grid.flat[len(sheet.charts) :]:
        axes.set_axis_off()
    for chart, axes in zip(sheet.charts, grid.flat, strict=False):
        axes.set_title(chart.title)
        chart.draw(axes, color)
    figure.suptitle(f"{sheet.title}\n{fill(sheet.text, round(60 * width))}", fontsize=9.5)
    if len(sheet.series) > 1:
        signs = [Patch(color=color(number), label=name) for number, name in sheet.colored]
        figure.legend(handles=signs, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    plots.save(figure, path)
    return path


def color(number: int) -> str:
    """The colour of a series in a file."""
    return tool_colors.LIGHT[number % len(tool_colors.LIGHT)]


def rows(count: int) -> int:
    """The height of a chart of ``count`` horizontal bars, in CSS pixels."""
    return _AROUND + _ROW * count


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows of horizontal bars, the first on top."""
    axes.set_yticks(range(len(names)), list(names))
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params("y", length=0)


def say(axes: Axes, text: str, x: float, y: float) -> None:
    """Write text at the right end of a bar."""
    axes.annotate(text, (x, y), (4, 0), textcoords="offset points", va="center", fontsize=9)


def hide_scale(axes: Axes, most: float) -> None:
    """Show bars up to ``most`` without the scale: their texts have the figures."""
    axes.set_xlim(0, most)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)


def lane_rows(groups: Mapping[str, Sequence[Lane]]) -> int:
    """The height of a timeline, in CSS pixels."""
    return _AROUND + 24 * sum(1 + len(lanes) for lanes in groups.values())


def draw_lanes(groups: Mapping[str, Sequence[Lane]], axes: Axes, color: Color) -> None:
    """Draw groups of lanes over one axis of milliseconds, each group under its title."""
    names: list[str] = []
    for title, lanes in groups.items():
        axes.text(0, len(names) + 0.2, title, transform=axes.get_yaxis_transform(), va="center", fontsize=9)
        names.append("")
        for lane in lanes:
            for number in sorted({series for *_, series in lane.spans}):
                spans = [(begin * 1e3, (end - begin) * 1e3) for begin, end, own in lane.spans if own == number]
                look: Any = {"alpha": 0.45, "linewidth": 0.4} if lane.overlap else {"linewidth": 0.0}
                axes.broken_barh(spans, (len(names) - 0.36, 0.72), color=color(number), **look)
            names.append(lane.name)
    name_rows(axes, names)
    axes.set_xlabel("ms since the iteration began")
    axes.set_xlim(left=0)
    axes.grid(axis="x")


def scale_sizes(axes: Axes, sizes: Collection[int]) -> None:
    """Show MB/s over MiB: the sizes (bytes) on a logarithmic axis, at most six of them named."""
    every = sorted(sizes)
    shown = every[:: -(-len(every) // 6)]
    axes.set_xscale("log", base=2)
    axes.set_xticks([nbytes / _MIB for nbytes in shown], list(map(summary_tables.size, shown)))
    axes.set_xticks([], minor=True)
    axes.set(xlabel="MiB", ylabel="MB/s", ylim=(0, None))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y")
