"""Draws an iteration's timeline: compute, the two copy engines, and the update. Needs matplotlib."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path

from fastio.errors import ToolUnavailableError
from fastio.files.atomic_file import AtomicFile
from fastio.hybrid.simulation.timeline import LANES, Timeline
from fastio.runtime.installation import pip_install

SUFFIXES = (".png", ".svg", ".pdf")
_COLORS = {  # Okabe and Ito's palette for the colour-blind
    "forward": "#0072B2",
    "backward": "#56B4E9",
    "copy": "#009E73",
    "late copy": "#CC79A7",
    "gradient": "#D55E00",
    "update": "#E69F00",
}


def draw(timelines: dict[str, Timeline], path: str | os.PathLike[str], note: str, layers: Sequence[str] = ()) -> None:
    """Draw timelines by name, one above the other, on one time axis. ``layers``: names to write where they fit.

    ``note`` says where the times come from. ``path`` ends in .png, .svg or .pdf (else ValueError) and is replaced
    atomically. Raises ToolUnavailableError without matplotlib, FolderMissingError and TransferError.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{os.fspath(path)}: a plot is one of {', '.join(SUFFIXES)}, got {suffix or 'no suffix'!r}")
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise ToolUnavailableError("matplotlib", str(error), pip_install("bench", "matplotlib")) from error
    longest = max((timeline.iteration_s for timeline in timelines.values()), default=0.0)
    picture = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "axes.axisbelow": True}):  # searchable text
        figure = Figure(figsize=(11, 1 + 2 * max(1, len(timelines))), layout="constrained")
        panels = figure.subplots(max(1, len(timelines)), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (name, timeline) in zip(panels, timelines.items(), strict=False):
            for what, color in _COLORS.items():
                for place, lane in enumerate(LANES):
                    own = [span for span in timeline.spans if (span.what, span.lane) == (what, lane)]
                    bars = [(span.start_s * 1e3, (span.end_s - span.start_s) * 1e3) for span in own]
                    axes.broken_barh(bars, (place - 0.4, 0.8), color=color, ec="white", lw=0.2)
            for span in timeline.spans:
                if layers and span.end_s - span.start_s > longest / 12:
                    middle = (span.start_s + span.end_s) / 2 * 1e3
                    place = LANES.index(span.lane)
                    axes.text(middle, place, layers[span.layer], ha="center", va="center", fontsize=6)
            axes.set_yticks(range(len(LANES)), LANES)
            axes.set_ylim(len(LANES) - 0.4, -0.6)
            axes.set_title(f"{name}: {timeline.iteration_s * 1e3:.2f} ms", loc="left", fontsize="medium")
            axes.grid(axis="x", alpha=0.3)
        panels[-1].set_xlabel(f"ms ({note})")
        panels[-1].set_xlim(0, max(longest * 1e3, 1e-9))
        handles = [Patch(color=color, label=what) for what, color in _COLORS.items()]
        figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False)
        figure.savefig(picture, format=suffix[1:], dpi=120)
    with AtomicFile(os.fspath(path)) as new, open(new.fd, "wb", closefd=False) as file:
        file.write(picture.getbuffer())
        file.flush()
        new.commit(durable=False)
