"""Summarises runs of training, and checks them against the goals. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from fastio_bench.offload.compare import Record
from fastio_bench.offload.training_job import Job, Moved
from fastio_bench.offload.training_ways import PLAIN, SYNCHRONOUS, TORCH
from fastio_bench.peers.goals import Goal

ACCURACY_GOAL = 1.0
_STEP_GOAL = 1.05
_LEAST_DEPTH = 24  # of the transformer with goals for memory and added time


@dataclass(frozen=True)
class Summary:
    """One way of training with one batch. ``step_s`` is the median of the rounds' median steps, in seconds.

    ``ratio`` is that over plain training's (less is faster), ``ratio_low`` and ``ratio_high`` the least and the most of
    any round. ``peak_bytes``: resident memory above the base, see :class:`fastio_bench.offload.training_job.Run`.
    """

    way: str
    batch: int
    rounds: int
    step_s: float | None
    ratio: float | None
    ratio_low: float | None
    ratio_high: float | None
    cpu_s: float | None
    peak_bytes: int | None
    same_gradients: bool
    same_losses: bool
    difference: float
    loss: float
    moved: Moved | None


def summarise(records: Sequence[Record]) -> list[Summary]:
    """One summary for each batch and way, in their order."""
    steps = {(r.batch, r.way, r.round): median(r.run.steps_s) for r in records if not r.exact_memory}
    kept: dict[tuple[int, str], list[Record]] = {}
    for record in records:
        kept.setdefault((record.batch, record.way), []).append(record)
    return [
        _summary(way, batch, own, {(name, at): step for (of, name, at), step in steps.items() if of == batch})
        for (batch, way), own in kept.items()
    ]


def _summary(way: str, batch: int, own: list[Record], steps: dict[tuple[str, int], float]) -> Summary:
    timed = [record for record in own if not record.exact_memory]
    seconds = [steps[way, record.round] for record in timed]
    plain = {number: step for (name, number), step in steps.items() if name == PLAIN}
    ratios = [steps[way, record.round] / plain[record.round] for record in timed if record.round in plain]
    peaks = [r.run.peak_bytes for r in own if r.exact_memory and r.run.peak_bytes is not None]
    moves = [record.run.moved for record in (timed or own) if record.run.moved is not None]
    return Summary(
        way,
        batch,
        len(timed),
        median(seconds) if seconds else None,
        median(seconds) / median(plain.values()) if seconds and plain else None,
        min(ratios, default=None),
        max(ratios, default=None),
        median(record.run.cpu_s for record in timed) if timed else None,
        max(peaks, default=None),
        all(record.same_gradients for record in own),
        all(record.same_losses for record in own),
        max(record.difference for record in own),
        own[-1].run.fixed_loss,
        _middle(moves),
    )


def _middle(moves: list[Moved]) -> Moved | None:
    """The round with the median actual iteration (the lower of two), or the last one if none has a figure."""
    known = sorted((moved for moved in moves if moved.actual_s is not None), key=lambda moved: moved.actual_s or 0.0)
    if known:
        return known[(len(known) - 1) // 2]
    return moves[-1] if moves else None


def check(summaries: Sequence[Summary], job: Job, workload: str, exact: bool) -> list[Goal]:
    """The goals for the job's way that these summaries of its batch can answer. ``exact``: whether its codec is.

    Goals for memory and added time hold for a transformer of 24 layers or more under policy "all". "As fast as plain"
    holds for the compute-heavy stack, unless the planner says that its transfers do not hide.
    """
    ways = {summary.way: summary for summary in summaries}
    if PLAIN not in ways or job.way not in ways:
        return []
    plain, own = ways[PLAIN], ways[job.way]
    goals = []
    if exact:
        goals.append(Goal("gradients, equal bits", workload, PLAIN, 1.0, float(own.same_gradients), "(1 is equal)"))
    if job.architecture == "transformer" and job.settings.get("policy") == "all" and job.depth >= _LEAST_DEPTH:
        if plain.peak_bytes and own.peak_bytes:
            goals.append(Goal("peak memory", workload, PLAIN, 10.0, plain.peak_bytes / own.peak_bytes, "x less"))
        for other, asked in ((SYNCHRONOUS, 0.4), (TORCH, 0.2)):
            share = added_share(plain, own, ways.get(other))
            if share is not None:
                what = f"what {other} adds"
                goals.append(Goal("time added to a plain step", workload, what, asked, share, "x", least=False))
    if job.architecture == "conv-stack" and own.ratio is not None and _hides(own):
        goals.append(Goal("step time", workload, PLAIN, _STEP_GOAL, own.ratio, "x", least=False))
    if own.moved is not None and own.moved.predicted_s and own.moved.actual_s:
        error = abs(own.moved.predicted_s / own.moved.actual_s - 1)
        goals.append(Goal("predicted iteration", workload, "the actual one", 0.15, error, "off", least=False))
    return goals


def _hides(own: Summary) -> bool:
    """Whether the transfers hide behind the compute, by the plan, or by the simulated timeline if there is none."""
    moved = own.moved
    if moved is None or moved.status == "delayed":
        return False
    return moved.status == "fits" or moved.predicted_slowdown is None or moved.predicted_slowdown <= _STEP_GOAL


def added_share(plain: Summary, own: Summary, other: Summary | None) -> float | None:
    """The time that ``own`` adds to a plain step over the time that ``other`` adds; None if that is not above 0."""
    if other is None or plain.step_s is None or own.step_s is None or other.step_s is None:
        return None
    added = other.step_s - plain.step_s
    return (own.step_s - plain.step_s) / added if added > 0 else None
