"""Charts of what ``fastio-bench tune`` learned: how fast each tool is at each size, and which one is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from textwrap import fill
from typing import TYPE_CHECKING, Any

from fastio.dicts import Explanation
from fastio_bench.report import charts, findings_tables, svg, tool_colors
from fastio_bench.report.charts import Chart, Color, Sheet, Sign

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ONE = "one tensor, "
_HEIGHT = 250  # CSS pixels
_MIB = 1 << 20
_STEPS = ((1.02, "fastest"), (1.1, "to 1.1 x"), (1.3, "to 1.3 x"), (2.0, "to 2 x"), (4.0, "to 4 x"), (0.0, "beyond"))


def dictionary(findings: Mapping[str, Any]) -> Iterator[Sheet]:
    """For the page: heat maps of tools by sizes, one for each work."""
    maps: dict[str, list[tuple[str, Explanation]]] = {}
    for label, answer in findings_tables.learned(findings.get("learned") or ()):
        thing, _, work = label.rpartition(", ")
        maps.setdefault(work, []).append((thing.removeprefix(_ONE), answer))
    if maps:
        text = "How many times as long as the fastest tool each one takes, as far as it is known; ● is the tool in use."
        signs = [Sign("patch", f"heat-{step}", name) for step, (_, name) in enumerate(_STEPS)]
        yield Sheet("dictionary", "The dictionaries", text, (), [_map(*one) for one in maps.items()], signs)


def sheets(findings: Mapping[str, Any]) -> Iterator[Sheet]:
    """The speed of each tool over the size of one tensor, as learned."""
    works: dict[str, list[Explanation]] = {}
    for label, answer in findings_tables.learned(findings.get("learned") or ()):
        if label.startswith(_ONE):
            works.setdefault(label.rpartition(", ")[2], []).append(answer)
    tools = list(dict.fromkeys(entry.tool for own in works.values() for answer in own for entry in answer.entries))
    if tools:
        text = "MB/s that the dictionaries expect of each tool, from what they saw; a ring marks the tool they use now."
        drawn = [Chart(work, _HEIGHT, _Lines(own, tools)) for work, own in works.items()]
        numbers = [tool_colors.number(tool) for tool in tools]
        yield Sheet("learned", "Speed over size, as learned", text, tools, drawn, numbers=numbers)


class _Lines:
    """A line for each tool over the size."""

    def __init__(self, answers: Sequence[Explanation], tools: Sequence[str]) -> None:
        self._answers, self._tools = answers, tools

    def __call__(self, axes: Axes, color: Color) -> None:
        for tool in self._tools:
            points = sorted(point for answer in self._answers for point in _points(answer, tool))
            if points:
                sizes, speeds = zip(*points, strict=True)
                axes.plot(sizes, speeds, color=color(tool_colors.number(tool)), marker="o", ms=3.5, lw=1.6)
        for answer in self._answers:
            for used in _points(answer, answer.tool):
                ring = color(tool_colors.number(answer.tool))
                axes.plot(*used, "o", ms=10, markerfacecolor="none", markeredgecolor=ring, markeredgewidth=1.6)
        axes.margins(x=0.08, y=0.12)
        charts.scale_sizes(axes, {answer.nbytes for answer in self._answers})


def _points(answer: Explanation, tool: str) -> list[tuple[float, float]]:
    """MiB and MB/s of the tool, if its time is known."""
    return [
        (answer.nbytes / _MIB, answer.nbytes / entry.seconds / 1e6)
        for entry in answer.entries
        if entry.tool == tool and entry.seconds
    ]


def _map(work: str, answers: Sequence[tuple[str, Explanation]]) -> Chart:
    tools = list(dict.fromkeys(entry.tool for _, answer in answers for entry in answer.entries))
    return Chart(work, 64 + 27 * len(tools), partial(_draw_map, answers, tools))


def _draw_map(answers: Sequence[tuple[str, Explanation]], tools: Sequence[str], axes: Axes, color: Color) -> None:
    from matplotlib.patches import Rectangle

    for column, (_, answer) in enumerate(answers):
        for entry in answer.entries:
            row = tools.index(entry.tool)
            cell, ink = svg.heat(_step(entry.relative))
            look: Any = {"facecolor": cell, "edgecolor": svg.PAPER, "linewidth": 1.5}
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, **look))
            used = " ●" if entry.tool == answer.tool else ""
            text = f"{entry.relative:.2f}{used}" if entry.relative < 100 else ">99"
            axes.text(column, row, text, color=ink, ha="center", va="center", fontsize=9)
    axes.set_xlim(-0.5, len(answers) - 0.5)
    axes.set_ylim(len(tools) - 0.5, -0.5)
    axes.set_xticks(range(len(answers)), [fill(svg.short(thing), 12) for thing, _ in answers])
    axes.set_yticks(range(len(tools)), list(map(svg.short, tools)))
    axes.tick_params(length=0)
    axes.spines["bottom"].set_visible(False)


def _step(relative: float) -> int:
    return next((step for step, (most, _) in enumerate(_STEPS) if relative <= most), len(_STEPS) - 1)
