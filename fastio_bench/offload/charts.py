"""Charts of ``fastio-bench offload``: the simulated machines of the papers, depths, and accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

from fastio_bench.report import charts, svg
from fastio_bench.report.charts import BAR, Chart, Color, Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_GB = 1e9
_WAYS = ("vdnn-all (m)", "vdnn-all")  # the chart shows this policy, which old documents call by its second name
_HEIGHT = 270  # CSS pixels
_BYTES = {"baseline_nbytes": "plain", "moved_nbytes": "moved", "peak_nbytes": "peak with vdnn-all"}


def sheets(findings: Mapping[str, Any]) -> Iterator[Sheet]:
    """The sheets for the findings that are there."""
    simulated = findings.get("simulated") or {}
    courses = [one for one in simulated.get("courses") or () if one["batches"]]
    if courses:
        ways = list(dict.fromkeys(one["way"] for one in courses))
        machines = dict.fromkeys(one["machine"] for one in courses)
        text = (
            "The iteration of VGG-16 over its own compute, 1 for transfers that hide; a line ends where the memory "
            "does. Simulated; that a GPU gains by larger batches is not in it."
        )
        drawn = [Chart(name, _HEIGHT, _Lines([o for o in courses if o["machine"] == name], ways)) for name in machines]
        yield Sheet("batches", "Simulated: the iteration as the batch grows", text, ways, drawn)
    if simulated.get("networks"):
        text = "GB of vDNN's networks on its Titan X; plain: with the fastest algorithms for convolutions. Simulated."
        rows = [one for one in simulated["networks"] if one.get("way", _WAYS[0]) in _WAYS]
        drawn = [Chart("vDNN-all, GB", charts.rows(len(rows) + 1) + 22 * len(rows), lambda a, c: _networks(a, c, rows))]
        yield Sheet("networks", "Simulated: memory of vDNN's networks", text, list(_BYTES.values()), drawn)
    deepest = findings.get("depths")
    if deepest:
        text = "Layers or blocks of the deepest network that trains in the memory given."
        drawn = [
            Chart("largest depth", charts.rows(len(deepest) + 1), lambda axes, color: _depths(axes, color, deepest))
        ]
        yield Sheet("depths", "Deeper in the same memory", text, (), drawn)
    trained = [one for one in findings.get("accuracy") or () if one.get("losses")]
    if trained:
        ways = [one["way"] for one in trained]
        text = "Means over the seeds, and from the least to the most of them; measured here."
        drawn = [Chart("training loss by epoch", _HEIGHT, lambda axes, color: _losses(axes, color, trained))]
        drawn += [Chart("right answers by seed", _HEIGHT, lambda axes, color: _scores(axes, color, trained))]
        yield Sheet("accuracy", "Training with and without offload", text, ways, drawn)


class _Lines:
    """A line for each way over the batch, on one machine."""

    def __init__(self, courses: Sequence[Mapping[str, Any]], ways: Sequence[str]) -> None:
        self._courses, self._ways = courses, ways

    def __call__(self, axes: Axes, color: Color) -> None:
        for one in self._courses:
            own = color(self._ways.index(one["way"]))
            axes.plot(one["batches"], one["slowdowns"], color=own, lw=1.6)
            axes.plot(one["batches"][-1], one["slowdowns"][-1], "o", ms=4.5, color=own)
        axes.set(xlabel="batch", ylabel="x its compute")
        axes.grid(axis="y")


def _networks(axes: Axes, color: Color, rows: Sequence[Mapping[str, Any]]) -> None:
    for number, key in enumerate(_BYTES):
        for place, one in enumerate(rows):
            value, at = one[key] / _GB, place + (number - 1) * 0.28
            axes.barh(at, value, 0.26, color=color(number))
            charts.say(axes, f"{value:.1f}", value, at)
    charts.name_rows(axes, [svg.short(f"{one['name']} ({one['batch']})") for one in rows])
    axes.set(xlim=(0, 1.15 * max(one[key] / _GB for one in rows for key in _BYTES)), xlabel="GB")


def _depths(axes: Axes, color: Color, deepest: Sequence[Mapping[str, Any]]) -> None:
    for place, one in enumerate(deepest):
        axes.barh(place, one["depth"], BAR, color=color(0))
        charts.say(axes, f"{one['depth']:,}", one["depth"], place)
    charts.name_rows(axes, [svg.short(one["way"]) for one in deepest])
    axes.set_xlim(0, 1.15 * max(1, *(one["depth"] for one in deepest)))


def _losses(axes: Axes, color: Color, trained: Sequence[Mapping[str, Any]]) -> None:
    from matplotlib.ticker import LogLocator

    epochs = range(1, len(trained[0]["losses"][0]) + 1)
    for number, one in enumerate(trained):
        by_epoch = list(
            zip(*([math.nan if loss is None else loss for loss in own] for own in one["losses"]), strict=True)
        )
        axes.fill_between(epochs, [*map(min, by_epoch)], [*map(max, by_epoch)], color=color(number), alpha=0.2, lw=0)
        style = "-" if number == 0 else (0, (4, 3))  # so that both of two equal lines are visible
        axes.plot(epochs, [mean(epoch) for epoch in by_epoch], color=color(number), ls=style, lw=1.8)
    axes.set(xlabel="epoch", ylabel="loss", yscale="log", xticks=epochs[:: -(-len(epochs) // 8)])
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    axes.grid(axis="y")


def _scores(axes: Axes, color: Color, trained: Sequence[Mapping[str, Any]]) -> None:
    for number, one in enumerate(trained):
        seeds = [seed + (number - 0.5) * 0.16 for seed in range(len(one["scores"]))]
        axes.plot(seeds, [100 * score for score in one["scores"]], "so"[number % 2], ms=5.5, color=color(number))
    axes.set(xlabel="seed", ylabel="%", xticks=range(len(trained[0]["scores"])))
    axes.margins(x=0.15, y=0.2)
    axes.grid(axis="y")
