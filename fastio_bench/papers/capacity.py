"""The largest batch that trains as fast as without offload, and the largest that trains at all. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from fastio.offload.planning.infeasible import InfeasibleBudget
from fastio.offload.planning.overlap import ActivationProfile
from fastio.offload.planning.schedule import Policy, plan
from fastio.offload.planning.timeline import Timeline
from fastio_bench.papers.simulation import simulate


@dataclass(frozen=True)
class Workload:
    """One iteration at one batch size, profiled without I/O: bytes and seconds.

    ``fixed_nbytes`` is resident at any batch size (weights, optimizer). ``working_nbytes`` grows with the batch,
    besides the activations (the largest layer's working set).
    """

    activations: tuple[ActivationProfile, ...]
    forward_s: float
    backward_s: float
    fixed_nbytes: int = 0
    working_nbytes: int = 0

    def scaled(self, factor: float) -> Workload:
        """Return the same workload at ``factor`` times the batch, with time and bytes in proportion.

        This favours plain training if its batch is too small to keep the device busy: a larger batch then takes less
        time.
        """
        activations = tuple(
            replace(
                activation,
                nbytes=math.ceil(activation.nbytes * factor),
                transfer_s=activation.transfer_s * factor,
                ready_s=activation.ready_s * factor,
            )
            for activation in self.activations
        )
        working = math.ceil(self.working_nbytes * factor)
        return Workload(activations, self.forward_s * factor, self.backward_s * factor, self.fixed_nbytes, working)


def iterate(workload: Workload, memory: int, policy: str | Policy = "flashneuron") -> Timeline:
    """Plan for ``memory`` bytes and simulate the plan. Raises InfeasibleBudget if it does not run."""
    room = memory - workload.fixed_nbytes - workload.working_nbytes
    if room < 0:
        cure = "no activation is left to move out: make the memory larger or the batch smaller"
        raise InfeasibleBudget("the memory that is always resident", memory - room, memory, cure)
    need = sum(activation.nbytes for activation in workload.activations) - room
    try:
        return _planned(workload, need, room, policy)
    except InfeasibleBudget:
        # A plan that fills the room completely has none for the first activation that is read back.
        return _planned(workload, need + max(activation.nbytes for activation in workload.activations), room, policy)


def _planned(workload: Workload, need: int, room: int, policy: str | Policy) -> Timeline:
    schedule = plan(workload.activations, need, workload.forward_s, policy)
    return simulate(
        workload.activations,
        schedule.selected,
        workload.forward_s,
        workload.backward_s,
        budget=room,
        synchronous=policy == "fastensor",
    )


def largest_runnable(
    at_batch: Callable[[int], Workload], memory: int, policy: str | Policy = "flashneuron", limit: int = 1 << 20
) -> int:
    """Return the largest batch up to ``limit`` that runs in ``memory`` bytes; 0 if none does."""
    return largest(lambda batch: _timeline(at_batch(batch), memory, policy) is not None, limit)


def largest_as_fast(
    at_batch: Callable[[int], Workload],
    memory: int,
    policy: str | Policy = "flashneuron",
    slack: float = 0.0,
    limit: int = 1 << 20,
) -> int:
    """Return the largest batch up to ``limit`` whose slowdown is at most 1 + ``slack``; 0 for none."""

    def as_fast(batch: int) -> bool:
        timeline = _timeline(at_batch(batch), memory, policy)
        return timeline is not None and timeline.slowdown <= 1 + slack

    return largest(as_fast, limit)


def calibrated_batch(plain_batch: int, hidden: float) -> int:
    """Return the batch size with offload if a share of the activations hides: floor(B0 / (1 - hidden)).

    Calibrated, not derived: FlashNeuron's table 3 depends on layer times that the paper shows only in figures. So
    ``hidden`` is fitted to the table, and proves nothing more.
    """
    return math.floor(plain_batch / (1 - hidden))


def _timeline(workload: Workload, memory: int, policy: str | Policy) -> Timeline | None:
    try:
        return iterate(workload, memory, policy)
    except InfeasibleBudget:
        return None


def largest(good: Callable[[int], bool], limit: int) -> int:
    """Return the last good batch, up to ``limit``, before the first bad one, by doubling and halving."""
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
