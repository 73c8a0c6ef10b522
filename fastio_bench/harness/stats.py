"""Summarises samples: medians, ratios to a baseline and their spread. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from fastio_bench.harness.rounds import Sample

BASELINE = "torch"


@dataclass(frozen=True, slots=True)
class Summary:
    """One tool at one work on one workload.

    ``seconds``, ``bandwidth`` (bytes/s) and ``cpu_per_gb`` (CPU seconds per 10^9 bytes) are medians over the rounds,
    ``best_bandwidth`` is the fastest round's, ``extra_bytes`` the largest peak. ``ratio`` is the baseline's median time
    in the same rounds over this tool's: above 1 is faster. ``ratio_low`` and ``ratio_high`` are the least and the
    most of any round.
    """

    work: str
    workload: str
    tool: str
    nbytes: int
    rounds: int
    seconds: float
    bandwidth: float
    best_bandwidth: float
    cpu_per_gb: float
    extra_bytes: int | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    ways: tuple[str, ...]
    gpu_busy: float | None = None


def group(samples: Iterable[Sample]) -> dict[tuple[str, str], dict[str, list[Sample]]]:
    """Group samples by (work, workload), then by tool, in their order."""
    groups: dict[tuple[str, str], dict[str, list[Sample]]] = {}
    for sample in samples:
        groups.setdefault((sample.work, sample.workload), {}).setdefault(sample.tool, []).append(sample)
    return groups


def summarise(samples: Iterable[Sample], baseline: str = BASELINE) -> list[Summary]:
    """One summary per (work, workload, tool)."""
    return [
        _summary(own, tools.get(baseline, ())) for tools in group(samples).values() for own in tools.values() if own
    ]


def _summary(own: Sequence[Sample], baseline: Sequence[Sample]) -> Summary:
    first = own[0]
    seconds = median(sample.seconds for sample in own)
    theirs = {sample.round: sample.seconds for sample in baseline}
    common = [(theirs[sample.round], sample.seconds) for sample in own if sample.round in theirs]
    ratios = [their / our for their, our in common]
    busy = [sample.gpu_busy for sample in own if sample.gpu_busy is not None]
    peaks = [sample.extra_bytes for sample in own if sample.extra_bytes is not None]
    return Summary(
        first.work,
        first.workload,
        first.tool,
        first.nbytes,
        len(own),
        seconds,
        first.nbytes / seconds,
        first.nbytes / min(sample.seconds for sample in own),
        median(sample.cpu_seconds for sample in own) / first.nbytes * 1e9,
        max(peaks, default=None),
        median(their for their, _ in common) / seconds if common else None,
        min(ratios, default=None),
        max(ratios, default=None),
        tuple(dict.fromkeys(sample.way for sample in own if sample.way)),
        median(busy) if busy else None,
    )
