"""Offloaded training on a report's page: what a step took, and the timeline of one iteration. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fastio_bench.offload.timeline import BACKWARD, FORWARD, READ, WRITE, Course, courses
from fastio_bench.report import svg
from fastio_bench.report.documents import Document
from fastio_bench.report.page_plots import PANEL, PATCH, Gallery, Plot

_COLORS = {FORWARD: 0, BACKWARD: 5, WRITE: 1, READ: 2}
_STEP, _STALL = 0, 1
_WIDE = 928  # CSS pixels


def galleries(document: Document) -> Iterator[Gallery]:
    """Steps and timelines, of whatever the document's findings hold."""
    ways = [one for one in document.findings.get("ways") or () if isinstance(one, Mapping)]
    if ways:
        legend = [(PATCH, f"series-{_STEP}", "a step"), (PATCH, f"series-{_STALL}", "of which waiting for transfers")]
        plot = Plot("steps", "Median step by way of training", _steps(f"{document.slug}-steps", ways))
        yield Gallery("Training steps", "Medians over interleaved rounds, each in a fresh process.", legend, [plot])
    plots = [
        Plot("timeline", way, _timeline(f"{document.slug}-timeline-{number}", way, found), wide=True)
        for number, (way, found) in enumerate(_timelines(document.findings.get("runs")).items())
    ]
    if plots:
        legend = [(PATCH, f"series-{number}", name) for name, number in _COLORS.items()]
        text = "One iteration: what was, above what was predicted. Transfers reach from issue until seen to be over."
        yield Gallery("Timeline of an iteration", text, legend, plots)


def _timelines(runs: Any) -> dict[str, list[Course]]:
    """By way, the courses of its last run that was timed and has them. Of ``hybrid``, whose runs go by name, none."""
    found: dict[str, list[Course]] = {}
    if isinstance(runs, Mapping):
        return found
    for one in runs or ():
        told = one["run"].get("timeline")
        if told is not None and not one["exact_memory"]:
            found[f"{_named(one, runs)} (policy {told['policy']})"] = courses(told)
    return found


def _named(one: Mapping[str, Any], among: Sequence[Mapping[str, Any]]) -> str:
    """Its way, and its batch where there are several."""
    several = len({other.get("batch") for other in among}) > 1
    return f"{one['way']}, batch {one['batch']}" if several else str(one["way"])


def _steps(name: str, ways: Sequence[Mapping[str, Any]]) -> str:
    kept = [one for one in ways if one["step_s"] is not None]
    with svg.drawing(PANEL, 52 + 28 * len(kept)) as figure:
        axes = figure.add_subplot()
        for place, one in enumerate(kept):
            step, stalled = one["step_s"] * 1e3, (one["moved"] or {}).get("stalled_s", 0.0) * 1e3
            axes.barh(place, step, 0.62, color=svg.series(_STEP))
            axes.barh(place, min(stalled, step), 0.62, left=max(step - stalled, 0.0), color=svg.series(_STALL))
            ratio = "" if one["ratio"] is None else f", {one['ratio']:.2f} x plain"
            text = f"{step:,.0f} ms{ratio}"
            axes.annotate(text, (step, place), (5, 0), textcoords="offset points", va="center", fontsize=9)
        axes.set_yticks(range(len(kept)), [svg.short(_named(one, kept)) for one in kept])
        axes.set_ylim(len(kept) - 0.4, -0.6)
        axes.set_xlim(0, 1.5e3 * max((one["step_s"] for one in kept), default=1e-3))
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        return svg.render(figure, name, "Median step by way of training")


def _timeline(name: str, way: str, found: Sequence[Course]) -> str:
    lanes = [list(dict.fromkeys(lane for lane, *_ in course.moves)) for course in found]
    heights = [len(own) + 1 for own in lanes]
    with svg.drawing(_WIDE, 56 + sum(30 + 26 * height for height in heights)) as figure:
        panels = figure.subplots(len(found), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
        for axes, course, own in zip(panels, found, lanes, strict=True):
            for what, begin, end in course.passes:
                axes.broken_barh([(begin * 1e3, (end - begin) * 1e3)], (-0.36, 0.72), color=_color(what), linewidth=0)
            for place, lane in enumerate(own, 1):
                for op in (WRITE, READ):
                    spans = [(a * 1e3, (b - a) * 1e3) for at, kind, a, b, _ in course.moves if (at, kind) == (lane, op)]
                    if spans:  # they overlap: where more are under way, the colour is deeper
                        axes.broken_barh(spans, (place - 0.36, 0.72), color=_color(op), alpha=0.45, linewidth=0.4)
            axes.set_yticks(range(len(own) + 1), ["passes", *map(svg.short, own)])
            axes.set_ylim(len(own) + 0.5, -0.5)
            axes.set_title(course.title, fontsize=9, weight="normal")
            axes.grid(axis="x")
        panels[-1].set_xlabel("ms since the forward pass began")
        panels[-1].set_xlim(left=0)
        return svg.render(figure, name, f"Timeline of an iteration: {way}")


def _color(what: str) -> str:
    return svg.series(_COLORS[what])
