"""Charts that stand in a command's files and on a report's page alike: drawn once, coloured twice. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, TypeAlias

from fastio_bench.report import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Color: TypeAlias = Callable[[int], str]
"""The colour of a series by its number."""

BAR = 0.62  # of the room that a bar has
_ROW, _AROUND = 27, 46  # CSS pixels of a bar with its gap, and of what stands around all of them
_COLUMN = 4.6  # inches of a chart in a file
_PIXELS = 84  # CSS pixels to an inch of a file: its letters are larger than a page's
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
    """One pair of axes, ``height`` CSS pixels high: ``draw(axes, color)`` fills them."""

    title: str
    height: int
    draw: Callable[[Axes, Color], None]


@dataclass(frozen=True)
class Sheet:
    """Charts with the same signs. ``name`` is a slug; ``series`` are names in the order of their colours."""

    name: str
    title: str
    text: str
    series: Sequence[str]
    charts: Sequence[Chart]


def write(beginning: Path, sheets: Iterable[Sheet]) -> list[Path]:
    """One PNG a sheet, ``<beginning>-<sheet>.png``. ImportError where matplotlib is missing."""
    import matplotlib

    with matplotlib.rc_context(_SETTINGS):
        return [_write(plots.named(beginning, sheet.name), sheet) for sheet in sheets]


def _write(path: Path, sheet: Sheet) -> Path:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    columns = 3 if len(sheet.charts) == 3 else min(2, len(sheet.charts))
    lines = [sheet.charts[place : place + columns] for place in range(0, len(sheet.charts), columns)]
    heights = [max(chart.height for chart in line) / _PIXELS for line in lines]
    width = max(columns, 1.5)
    figure = Figure(figsize=(_COLUMN * width, sum(heights) + 1.1), layout="constrained")
    grid = figure.subplots(len(lines), columns, squeeze=False, height_ratios=heights)
    for axes in grid.flat[len(sheet.charts) :]:
        axes.set_axis_off()
    for chart, axes in zip(sheet.charts, grid.flat, strict=False):
        axes.set_title(chart.title)
        chart.draw(axes, color)
    figure.suptitle(f"{sheet.title}\n{fill(sheet.text, round(60 * width))}", fontsize=9.5)
    if len(sheet.series) > 1:
        signs = [Patch(color=color(number), label=name) for number, name in enumerate(sheet.series)]
        figure.legend(handles=signs, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    plots.save(figure, path)
    return path


def color(number: int) -> str:
    """The colour of a series in a file: matplotlib's own, which come round again."""
    return f"C{number % 10}"


def rows(count: int) -> int:
    """The height of a chart of so many bars below each other, in CSS pixels."""
    return _AROUND + _ROW * count


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Bars that lie below each other, the first on top, and their names."""
    axes.set_yticks(range(len(names)), list(names))
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params("y", length=0)


def say(axes: Axes, text: str, x: float, y: float) -> None:
    """A few words at the right end of a bar."""
    axes.annotate(text, (x, y), (4, 0), textcoords="offset points", va="center", fontsize=9)
