"""Writes PNG bar charts of summaries. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from io import BytesIO
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from fastio_bench.harness import whole_files
from fastio_bench.harness.stats import Summary
from fastio_bench.report import tool_colors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HATCHES = ("//", "..", "xx", "--")
_BESIDE = 70  # characters of names that fit side by side; longer ones are rotated
_TO_AN_INCH, _LINE = 19, 0.11  # characters of the small line, and its height in inches
_origin: ContextVar[str] = ContextVar("origin", default="")


def draw(beginning: Path, summaries: Sequence[Summary]) -> list[Path]:
    """Write one PNG a work, ``<beginning>-<work>.png``: MB/s by workload and tool.

    Raises ImportError without matplotlib.
    """
    from matplotlib.figure import Figure

    written = []
    for work in dict.fromkeys(summary.work for summary in summaries):
        own = [summary for summary in summaries if summary.work == work]
        workloads = list(dict.fromkeys(summary.workload for summary in own))
        tools = list(dict.fromkeys(summary.tool for summary in own))
        modes = [tool for tool in tools if "," in tool]  # "torch, no CRC" has torch's colour
        figure = Figure(figsize=(9, 5), layout="constrained")
        axes = figure.add_subplot()
        for number, tool in enumerate(tools):
            values = {s.workload: s.bandwidth / 1e6 for s in own if s.tool == tool}
            places = [workloads.index(workload) for workload in values]
            width = 0.8 / len(tools)
            left = (number + 0.5) * width - 0.4
            axes.bar(
                [place + left for place in places],
                list(values.values()),
                width,
                label=tool,
                color=tool_colors.in_files(tool),
                hatch=_HATCHES[modes.index(tool) % len(_HATCHES)] if tool in modes else None,
                edgecolor="white",
            )
        axes.set_xticks(range(len(workloads)), workloads)
        _turn(axes, workloads)
        axes.set(title=work, ylabel="MB/s (median)", ylim=(0, None))
        axes.legend()
        path = named(beginning, work.replace(",", "").replace(" ", "-"))
        save(figure, path)
        written.append(path)
    return written


def _turn(axes: Axes, names: Sequence[str]) -> None:
    if len(" ".join(names)) > _BESIDE:
        axes.tick_params("x", labelrotation=30)
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")


def _sign(figure: Figure, text: str) -> None:
    """Write a small line below everything else, for which the figure grows."""
    width, height = figure.get_size_inches()
    lines = wrap(text, int(width * _TO_AN_INCH))
    room = 0.06 + _LINE * len(lines)  # inches
    figure.set_size_inches(width, height + room)
    above = (0.0, room / (height + room), 1.0, height / (height + room))
    figure.set_layout_engine("constrained", rect=above)
    figure.draw_without_rendering()  # the layout leaves room for a legend only while it is at the figure's edge
    figure.set_layout_engine("none")
    for legend in figure.legends:
        legend.set_bbox_to_anchor(above, figure.transFigure)
    figure.text(0.01, 0.03 / (height + room), "\n".join(lines), fontsize=6.5, color="0.4", va="bottom", linespacing=1.2)


def named(beginning: Path, name: str) -> Path:
    """The path of a document's plot. ``beginning`` is the document's path without its suffix."""
    return beginning.with_name(f"{beginning.name}-{name}.png")


@contextmanager
def signed(origin: str) -> Iterator[None]:
    """Inside, the plots that are written have this line at the bottom: when, where and by what it was measured."""
    token = _origin.set(origin)
    try:
        yield
    finally:
        _origin.reset(token)


def save(figure: Figure, path: Path) -> None:
    """Write the figure as a PNG. Raises OSError and keeps the old file if that fails."""
    picture = BytesIO()
    if origin := _origin.get():
        _sign(figure, origin)
    figure.savefig(picture, format="png", dpi=120)
    with whole_files.replacing(path) as keep:
        keep(picture.getvalue())
