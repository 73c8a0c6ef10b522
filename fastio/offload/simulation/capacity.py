"""The largest batch that trains as fast as without offload, and the largest that trains at all. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from fastio.offload.planning.infeasible import InfeasibleBudget
from fastio.offload.planning.overlap import ActivationProfile
from fastio.offload.planning.schedule import Policy, plan
from fastio.offload.simulation.timeline import Timeline, simulate


@dataclass(frozen=True)
class Workload:
    """One iteration at one batch size, as profiled without I/O: bytes and seconds.

    ``fixed_nbytes`` is resident whatever the batch (weights, optimizer); ``working_nbytes`` is what grows with it
    besides the blobs (the largest layer's working set).
    """

    blobs: tuple[ActivationProfile, ...]
    forward_s: float
    backward_s: float
    fixed_nbytes: int = 0
    working_nbytes: int = 0

    def scaled(self, factor: float) -> Workload:
        """The same at ``factor`` times the batch, if time and bytes grow in proportion.

        Kind to plain training where its batch is too small to keep the device busy: a larger one then takes less.
        """
        blobs = tuple(
            replace(
                blob,
                nbytes=math.ceil(blob.nbytes * factor),
                transfer_s=blob.transfer_s * factor,
                ready_s=blob.ready_s * factor,
            )
            for blob in self.blobs
        )
        working = math.ceil(self.working_nbytes * factor)
        return Workload(blobs, self.forward_s * factor, self.backward_s * factor, self.fixed_nbytes, working)


def iterate(workload: Workload, memory: int, policy: str | Policy = "flashneuron") -> Timeline:
    """Plan for ``memory`` bytes and simulate the plan. Raises InfeasibleBudget where it does not run."""
    room = memory - workload.fixed_nbytes - workload.working_nbytes
    if room < 0:
        cure = "no activation is left to move out: make the memory larger or the batch smaller"
        raise InfeasibleBudget("what is always resident", memory - room, memory, cure)
    need = sum(blob.nbytes for blob in workload.blobs) - room
    try:
        return _planned(workload, need, room, policy)
    except InfeasibleBudget:
        # A plan that fills the room to the last byte has none for the first blob on its way back.
        return _planned(workload, need + max(blob.nbytes for blob in workload.blobs), room, policy)


def _planned(workload: Workload, need: int, room: int, policy: str | Policy) -> Timeline:
    schedule = plan(workload.blobs, need, workload.forward_s, policy)
    return simulate(
        workload.blobs,
        schedule.selected,
        workload.forward_s,
        workload.backward_s,
        budget=room,
        synchronous=policy == "fastensor",
    )


def largest_runnable(
    at_batch: Callable[[int], Workload], memory: int, policy: str | Policy = "flashneuron", limit: int = 1 << 20
) -> int:
    """The largest batch up to ``limit`` that runs in ``memory`` bytes; 0 where none does."""
    return _largest(lambda batch: _timeline(at_batch(batch), memory, policy) is not None, limit)


def largest_as_fast(
    at_batch: Callable[[int], Workload],
    memory: int,
    policy: str | Policy = "flashneuron",
    slack: float = 0.0,
    limit: int = 1 << 20,
) -> int:
    """The largest batch up to ``limit`` whose iteration takes at most 1 + ``slack`` of its own compute; 0 for none."""

    def as_fast(batch: int) -> bool:
        timeline = _timeline(at_batch(batch), memory, policy)
        return timeline is not None and timeline.slowdown <= 1 + slack

    return _largest(as_fast, limit)


def calibrated_batch(plain_batch: int, hidden: float) -> int:
    """Batch size with offload from the share of activations that hides: floor(B0 / (1 - hidden)).

    Calibrated, not derived: FlashNeuron's table 3 rests on layer times that the paper shows in figures only, so
    ``hidden`` is fitted to the table, and nothing more may be claimed of it.
    """
    return math.floor(plain_batch / (1 - hidden))


def _timeline(workload: Workload, memory: int, policy: str | Policy) -> Timeline | None:
    try:
        return iterate(workload, memory, policy)
    except InfeasibleBudget:
        return None


def _largest(good: Callable[[int], bool], limit: int) -> int:
    """The last batch before the first bad one, by doubling and halving: good and bad are taken to be two stretches."""
    if not good(1):
        return 0
    low, high = 1, 2
    while high <= limit and good(high):
        low, high = high, 2 * high
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return low
