"""Simulates the time and memory of an iteration under a schedule; no clock, file or device.

One channel writes and one reads, each first in, first out, beside one compute stream. Bytes and seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fastio.offload.planning.infeasible import InfeasibleBudget
from fastio.offload.planning.overlap import ActivationProfile
from fastio.offload.planning.timeline import Timeline, Transfer


@dataclass(frozen=True)
class Simulated(Timeline):
    """A simulated iteration, and the most memory that its activations took. Forward waits for the last write, too."""

    peak_nbytes: int


def simulate(
    activations: Sequence[ActivationProfile],
    selected: Sequence[int],
    forward_s: float,
    backward_s: float,
    *,
    budget: int | None = None,
    read_s: Sequence[float] | None = None,
    needed_s: Sequence[float] | None = None,
    synchronous: bool = False,
) -> Simulated:
    """Run one iteration with the ``selected`` activations moved out.

    ``budget`` is the memory for activations in bytes; with None everything is read back at once. ``read_s`` gives the
    seconds to read each; default: those to write. ``needed_s`` gives when each is needed, in seconds from the start of
    a backward pass without I/O; by default backward mirrors forward. With ``synchronous``, compute waits for each
    transfer, and reads start when they are needed (Fastensor).

    An activation takes memory from ``ready_s`` until its write is done, if it is moved out, and again from the issue of
    its read. Its use frees it, and takes no time. All writes end before backward starts. Reads are issued in the order
    of need, as soon as memory has room. Raises InfeasibleBudget if an activation has no room however long compute
    waits.
    """
    chosen = frozenset(selected)
    room = math.inf if budget is None else budget
    writes, stall, peak = _forward(activations, chosen, room, synchronous)
    drain = max((write.finish_s for write in writes), default=0.0) - (forward_s + stall)
    stall += max(0.0, drain)
    mirror = backward_s / forward_s if forward_s > 0 else 0.0
    needed = (
        [max(0.0, forward_s - activation.ready_s) * mirror for activation in activations]
        if needed_s is None
        else needed_s
    )
    seconds = [activation.stored_s for activation in activations] if read_s is None else read_s
    start = forward_s + stall
    reads, waited, backward_peak = _backward(activations, chosen, room, synchronous, start, seconds, needed)
    return Simulated(forward_s, backward_s, stall, waited, writes, reads, max(peak, backward_peak))


def _forward(
    activations: Sequence[ActivationProfile], chosen: frozenset[int], room: float, synchronous: bool
) -> tuple[tuple[Transfer, ...], float, int]:
    """Return the writes, the time compute waited for memory (synchronous: for writes), and the peak."""
    writes: list[Transfer] = []
    gone = 0  # writes whose memory is free again
    stall = idle_from = 0.0
    resident = peak = 0
    for i in sorted(range(len(activations)), key=lambda i: activations[i].ready_s):
        now = activations[i].ready_s + stall
        want = resident + activations[i].nbytes
        while gone < len(writes) and (writes[gone].finish_s <= now or want > room):
            stall += max(0.0, writes[gone].finish_s - now)
            now = max(now, writes[gone].finish_s)
            want -= activations[writes[gone].activation].nbytes
            gone += 1
        _check(want, room, i, "forward")
        resident = want
        peak = max(peak, resident)
        if i in chosen:
            begin = max(now, idle_from)
            idle_from = begin + activations[i].stored_s
            writes.append(Transfer(i, begin, idle_from))
            stall += idle_from - now if synchronous else 0.0
    return tuple(writes), stall, peak


def _backward(
    activations: Sequence[ActivationProfile],
    chosen: frozenset[int],
    room: float,
    synchronous: bool,
    start: float,
    read_s: Sequence[float],
    needed_s: Sequence[float],
) -> tuple[tuple[Transfer, ...], float, int]:
    """Return the reads, the time compute waited for them, and the peak."""
    uses = sorted(range(len(activations)), key=lambda i: (needed_s[i], -i))
    queue = [i for i in uses if i in chosen]
    reads: list[Transfer] = []
    resident = peak = sum(activation.nbytes for i, activation in enumerate(activations) if i not in chosen)
    stall, idle_from, now = 0.0, start, start
    ready: dict[int, float] = {}
    for use in uses:
        if synchronous:
            now = max(now, start + needed_s[use] + stall)
        while len(reads) < len(queue) and (not synchronous or queue[len(reads)] == use):
            i = queue[len(reads)]
            if resident + activations[i].nbytes > room:
                break
            resident += activations[i].nbytes
            begin = max(now, idle_from)
            idle_from = begin + read_s[i]
            reads.append(Transfer(i, begin, idle_from))
            ready[i] = idle_from
        peak = max(peak, resident)
        now = max(now, start + needed_s[use] + stall)
        if use in chosen:
            if use not in ready:
                _check(resident + activations[use].nbytes, room, use, "backward")
            stall += max(0.0, ready[use] - now)
            now = max(now, ready[use])
        resident -= activations[use].nbytes
    return tuple(reads), stall, peak


def _check(want: int, room: float, activation: int, direction: str) -> None:
    if want > room:
        cure = "move out more of the activations before it, or make the budget larger"
        raise InfeasibleBudget(f"activation {activation} in the {direction} pass", want, int(room), cure)
