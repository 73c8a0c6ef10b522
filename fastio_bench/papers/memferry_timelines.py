"""The timelines of some simulated iterations as plain data for JSON, for the page's charts. Seconds. Pure.

``{"title": network and machine, "ways": {way: {"iteration_s": seconds, "spans": [[lane, what, begin, end], ...]}}}``
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from fastio.hybrid.simulation.timeline import Timeline
from fastio_bench.papers.memferry_simulated import Simulated

Run: TypeAlias = list[Any]
"""A span: lane, what it does, begin, end."""

_SHOWN = {"BERT-base", "GPT-2-medium", "Transformer-XL 2.4B"}  # small and large, copying more and computing more
_GAP = 1e-3  # share of the iteration: shorter gaps are not visible
_DIGITS = 6  # of seconds


def documents(found: Iterable[Simulated]) -> list[dict[str, Any]]:
    """Every way's iteration, for a few networks."""
    return [
        {
            "title": f"{one.network.name} on {one.machine.name}",
            "ways": {
                way: {"iteration_s": timeline.iteration_s, "spans": _runs(timeline)}
                for way, timeline in one.timelines.items()
            },
        }
        for one in found
        if one.network.name in _SHOWN
    ]


def _runs(timeline: Timeline) -> list[Run]:
    """The timeline's spans. Consecutive layers that do the same are joined."""
    runs: list[Run] = []
    for span in sorted(timeline.spans, key=lambda span: (span.lane, span.start_s)):
        lane, what, _, end = runs[-1] if runs else ("", "", 0.0, 0.0)
        if (lane, what) == (span.lane, span.what) and span.start_s - end <= _GAP * timeline.iteration_s:
            runs[-1][3] = max(end, span.end_s)
        else:
            runs.append([span.lane, span.what, span.start_s, span.end_s])
    return [[lane, what, round(begin, _DIGITS), round(end, _DIGITS)] for lane, what, begin, end in runs]
