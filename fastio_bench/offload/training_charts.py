"""Charts of offloaded training: the time and memory of a step by way, and the timeline of one iteration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fastio_bench.offload.timeline import BACKWARD, FORWARD, READ, WRITE, Course, courses
from fastio_bench.report import charts, svg
from fastio_bench.report.charts import BAR, Chart, Color, Lane, Sheet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SERIES = {FORWARD: 0, WRITE: 1, READ: 2, BACKWARD: 5}  # the colours that hybrid's timelines have, too
_MIB = 1 << 20


def sheets(findings: Mapping[str, Any]) -> Iterator[Sheet]:
    """Steps and timelines, as far as the findings hold them."""
    yield from steps(findings)
    timelines = _timelines(findings.get("runs"))
    if timelines:
        text = "One iteration, actual above predicted. A transfer is drawn from its issue until its end was noticed."
        drawn = [
            Chart(way, charts.lane_rows(groups), partial(charts.draw_lanes, groups), wide=True)
            for way, groups in timelines.items()
        ]
        numbers = tuple(_SERIES.values())
        yield Sheet("timeline", "Timeline of an iteration", text, tuple(_SERIES), drawn, numbers=numbers)


def steps(findings: Mapping[str, Any]) -> Iterator[Sheet]:
    """The median step of each way and its peak of memory."""
    ways = [one for one in findings.get("ways") or () if isinstance(one, Mapping) and one["step_s"] is not None]
    if ways:
        text = "Medians over interleaved rounds, each in a fresh process; memory above what a plain step left behind."
        height = charts.rows(len(ways))
        drawn = [
            Chart("median step by way of training", height, partial(_steps, ways)),
            Chart("peak of resident memory, MiB", height, partial(_peaks, ways)),
        ]
        yield Sheet("ways", "Training steps", text, ("a step", "its wait for transfers"), drawn)


def _timelines(runs: Any) -> dict[str, dict[str, list[Lane]]]:
    """By way, the courses of its last timed run. ``hybrid`` keeps its runs in a mapping, without timelines."""
    found: dict[str, dict[str, list[Lane]]] = {}
    if isinstance(runs, Mapping):
        return found
    for one in runs or ():
        told = one["run"].get("timeline")
        if told is not None and not one["exact_memory"]:
            named = f"{_name(one, runs)} (policy {told['policy']})"
            found[named] = {course.title: _lanes(course) for course in courses(told)}
    return found


def _lanes(course: Course) -> list[Lane]:
    passes = Lane("passes", [(begin, end, _SERIES[what]) for what, begin, end in course.passes])
    names = dict.fromkeys(lane for lane, *_ in course.moves)
    moves = [
        Lane(name, [(a, b, _SERIES[op]) for lane, op, a, b, _ in course.moves if lane == name], overlap=True)
        for name in names
    ]
    return [passes, *moves]


def _name(one: Mapping[str, Any], among: Sequence[Mapping[str, Any]]) -> str:
    """The way, and the batch where there are several."""
    several = len({other.get("batch") for other in among}) > 1
    return f"{one['way']}, batch {one['batch']}" if several else str(one["way"])


def _steps(ways: Sequence[Mapping[str, Any]], axes: Axes, color: Color) -> None:
    for place, one in enumerate(ways):
        step, stalled = one["step_s"] * 1e3, (one["moved"] or {}).get("stalled_s", 0.0) * 1e3
        axes.barh(place, step, BAR, color=color(0))
        axes.barh(place, min(stalled, step), BAR, left=max(step - stalled, 0.0), color=color(1))
        ratio = "" if one["ratio"] is None else f", {one['ratio']:.2f} x plain"
        charts.say(axes, f"{step:,.0f} ms{ratio}", step, place)
    _finish(axes, ways, 1.5e3 * max(one["step_s"] for one in ways))


def _peaks(ways: Sequence[Mapping[str, Any]], axes: Axes, color: Color) -> None:
    peaks = [(one["peak_bytes"] or 0) / _MIB for one in ways]
    for place, peak in enumerate(peaks):
        axes.barh(place, peak, BAR, color=color(0))
        charts.say(axes, f"{peak:,.0f}", peak, place)
    _finish(axes, ways, 1.2 * max(1.0, *peaks))


def _finish(axes: Axes, ways: Sequence[Mapping[str, Any]], most: float) -> None:
    charts.name_rows(axes, [svg.short(_name(one, ways)) for one in ways])
    charts.hide_scale(axes, most)
