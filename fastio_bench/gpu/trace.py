"""Profiles one step with offload: how long kernels and copies ran, how much of both at once, the longest gaps.

The trace goes to ``out/trace.json.gz``, for Chrome or Perfetto. Only CUDA's devices are in it.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

import fastio
from fastio_bench.gpu.script import Script
from fastio_bench.gpu.training import OPTIONS, training_step

_WARM_UP = 4  # steps
_GAPS = 10

_Spans = list[tuple[float, float]]


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    script = Script(arguments, __doc__, dir=".", out="out", **OPTIONS)
    given = script.given
    step = training_step(script)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if script.accelerator.kind == "cuda" else [])]
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        offload = fastio.Offload(store=folder, policy="all", host_budget=given.host_budget, codec="none")
        for _ in range(_WARM_UP):
            step(offload)
        script.synchronize()
        with profile(activities=activities, acc_events=True) as found:  # without, torch warns that it may drop events
            step(offload)
            script.synchronize()
        offload.close()
    Path(given.out).mkdir(exist_ok=True)
    found.export_chrome_trace(str(Path(given.out, "trace.json.gz")))
    script.tell(**summary(*_spans(found.events())))


def _spans(events: Any) -> tuple[_Spans, _Spans]:
    """Kernels and copies, from a profiler's events."""
    kernels: _Spans = []
    copies: _Spans = []
    for event in events:
        if event.device_type.name != "CPU":
            spans = copies if event.name.startswith("Mem") else kernels
            spans.append((event.time_range.start, event.time_range.end))
    return kernels, copies


def summary(kernels: _Spans, copies: _Spans) -> dict[str, Any]:
    """Milliseconds, from the begin and end of kernels and of copies, in microseconds."""
    kernels, copies, every = _union(kernels), _union(copies), _union([*kernels, *copies])
    gaps = [later - earlier for (_, earlier), (later, _) in itertools.pairwise(kernels)]
    return {
        "step_ms": (every[-1][1] - every[0][0]) / 1e3 if every else None,
        "kernels_ms": _length(kernels),
        "copies_ms": _length(copies),
        "both_ms": _length(kernels) + _length(copies) - _length(every),
        "longest_gaps_ms": [gap / 1e3 for gap in sorted(gaps, reverse=True)[:_GAPS]],
    }


def _union(spans: _Spans) -> _Spans:
    union: _Spans = []
    for begin, end in sorted(spans):
        if union and begin <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((begin, end))
    return union


def _length(spans: _Spans) -> float:
    return sum(end - begin for begin, end in spans) / 1e3


if __name__ == "__main__":
    main()
