"""Draws the timeline of an iteration: actual, predicted, and bytes in flight. Needs matplotlib."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastio.errors import ToolUnavailableError
from fastio.files.atomic_file import AtomicFile
from fastio.offload.report import Event, Iteration, Report
from fastio.runtime.installation import pip_install

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
_COLORS = {  # Okabe and Ito's palette for the colour-blind
    "forward": "#0072B2",
    "backward": "#56B4E9",
    "write": "#D55E00",
    "read": "#009E73",
    "away": "#999999",
}
_MIB = 1 << 20
_Bar = tuple[float, float, str]  # begin and end in ms, and its label


def draw(report: Report, path: str | os.PathLike[str]) -> None:
    """Draw the latest complete iteration above its prediction, on one time axis.

    ``path`` ends in .png, .svg or .pdf (else ValueError) and is replaced atomically. Raises ToolUnavailableError
    without matplotlib, FolderMissingError and TransferError.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{os.fspath(path)}: a plot is one of {', '.join(SUFFIXES)}, got {suffix or 'no suffix'!r}")
    picture = io.BytesIO()
    try:
        import matplotlib
    except ImportError as error:
        raise ToolUnavailableError("matplotlib", str(error), pip_install("bench", "matplotlib")) from error
    with matplotlib.rc_context({"svg.fonttype": "none", "axes.axisbelow": True}):  # searchable text
        _figure(report).savefig(picture, format=suffix[1:], dpi=120)
    with AtomicFile(os.fspath(path)) as new, open(new.fd, "wb", closefd=False) as file:
        file.write(picture.getbuffer())
        file.flush()
        new.commit(durable=False)


def _figure(report: Report) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    actual, predicted, in_flight = figure.subplots(3, 1, sharex=True, height_ratios=[3, 2, 2])
    latest = report.latest
    events = [] if latest is None else [event for event in report.events if event.step == latest.step]
    _draw_actual(actual, report, latest, events)
    _draw_predicted(predicted, report)
    _draw_bytes(in_flight, latest, events)
    in_flight.set_xlabel("ms since the forward pass began (transfers that were made: from issue until seen to be over)")
    in_flight.set_xlim(left=0)
    handles = [Patch(color=_COLORS[name], label=name) for name in ("forward", "backward", "write", "read")]
    figure.legend(handles=handles, loc="outside lower right", ncols=4, frameon=False)
    lines = [*report.headline, f"activation offload, policy {report.policy}"]
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize="medium")
    return figure


def _draw_actual(axes: Axes, report: Report, latest: Iteration | None, events: Sequence[Event]) -> None:
    if latest is None:
        _say(axes, "actual", "no iteration is complete: backward has not run")
        return
    title = f"actual: iteration {latest.step}"
    if latest.seconds is not None:
        title += f", {latest.seconds * 1e3:.1f} ms"
    if _is_cut(report, latest):
        title += " (its first transfers are no longer remembered)"
    passes: list[_Bar] = [(0.0, _ms(latest.forward_ended_s, latest), "forward")]
    if latest.backward_began_s is not None and latest.backward_ended_s is not None:
        passes.append((_ms(latest.backward_began_s, latest), _ms(latest.backward_ended_s, latest), "backward"))
    lanes = {"passes": passes}
    for event in sorted(events, key=lambda event: (event.tier, event.op != "write")):
        bar = (_ms(event.began_s, latest), _ms(event.ended_s, latest), event.op)
        lanes.setdefault(f"{event.tier} {event.op}s", []).append(bar)
    _draw_lanes(axes, title, lanes)


def _is_cut(report: Report, latest: Iteration) -> bool:
    """Return whether transfers of this iteration may be missing: a report holds a limited number."""
    moves = sum(one.writes + one.reads for one in report.traffic.values())
    return len(report.events) < moves and all(event.step >= latest.step for event in report.events[:1])


def _draw_predicted(axes: Axes, report: Report) -> None:
    timeline = report.predicted
    if timeline is None:
        _say(axes, "predicted", "no prediction: no iteration of this shape came before")
        return
    middle = timeline.forward_s + timeline.forward_stall_s
    lanes: dict[str, list[_Bar]] = {
        "passes": [(0.0, middle * 1e3, "forward"), (middle * 1e3, timeline.iteration_s * 1e3, "backward")],
        "writes": [(one.start_s * 1e3, one.finish_s * 1e3, "write") for one in timeline.writes],
        "reads": [(one.start_s * 1e3, one.finish_s * 1e3, "read") for one in timeline.reads],
    }
    title = f"predicted: {timeline.iteration_s * 1e3:.1f} ms, of which waiting {timeline.forward_stall_s * 1e3:.1f} "
    title += f"in forward, {timeline.backward_stall_s * 1e3:.1f} in backward"
    _draw_lanes(axes, title, lanes)


def _draw_lanes(axes: Axes, title: str, lanes: dict[str, list[_Bar]]) -> None:
    for place, bars in enumerate(lanes.values()):
        for op in dict.fromkeys(op for *_, op in bars):
            spans = [(begin, end - begin) for begin, end, what in bars if what == op]
            # Transfers overlap: where more are in flight, the colour is deeper.
            alpha = 1.0 if op in ("forward", "backward") else 0.4
            # The edge keeps short ones visible.
            axes.broken_barh(spans, (place - 0.4, 0.8), color=_COLORS[op], alpha=alpha, linewidth=0.5)
    axes.set_yticks(range(len(lanes)), list(lanes))
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.set_title(title, loc="left", fontsize="medium")
    axes.grid(axis="x", alpha=0.3)


def _draw_bytes(axes: Axes, latest: Iteration | None, events: Sequence[Event]) -> None:
    """Draw the bytes of pending writes and reads, and of what is away: written, and not being read back yet."""
    title = "bytes under way, and away (written and not yet being read back), as stored"
    if latest is None or not events:
        _say(axes, title, "nothing was moved")
        return
    asked: dict[int, float] = {}
    for event in events:
        if event.op == "read":
            asked.setdefault(event.ordinal, event.began_s)
    written = [event for event in events if event.op == "write"]
    changes = [(event.ended_s, event.nbytes) for event in written]
    changes += [(asked[event.ordinal], -event.nbytes) for event in written if event.ordinal in asked]
    _draw_steps(axes, latest, changes, "away")
    for op in ("write", "read"):
        changes = [(event.began_s, event.nbytes) for event in events if event.op == op]
        changes += [(event.ended_s, -event.nbytes) for event in events if event.op == op]
        _draw_steps(axes, latest, changes, op)
    axes.set_ylabel("MiB")
    axes.set_ylim(bottom=0)
    axes.set_title(title, loc="left", fontsize="medium")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper right", fontsize="small")


def _draw_steps(axes: Axes, latest: Iteration, changes: list[tuple[float, int]], what: str) -> None:
    now, times, levels = 0, [0.0], [0.0]
    for when, by in sorted(changes):
        now += by
        times.append(_ms(when, latest))
        levels.append(now / _MIB)
    if latest.backward_ended_s is not None:
        times.append(max(times[-1], _ms(latest.backward_ended_s, latest)))
        levels.append(levels[-1])
    if what == "away":
        axes.fill_between(times, levels, step="post", color=_COLORS[what], alpha=0.35, linewidth=0, label=what)
    else:
        axes.step(times, levels, where="post", color=_COLORS[what], label=what)


def _say(axes: Axes, title: str, text: str) -> None:
    axes.set_title(title, loc="left", fontsize="medium")
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
    axes.set_yticks([])


def _ms(when: float, latest: Iteration) -> float:
    return (when - latest.forward_began_s) * 1e3
