"""What an iteration does in time and memory under a schedule: a simulation, with no clock, file or device.

One channel writes and one reads, each first in, first out, beside one stream of compute. Units: bytes and seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fastio.offload.planning.infeasible import InfeasibleBudget
from fastio.offload.planning.overlap import ActivationProfile


@dataclass(frozen=True)
class Transfer:
    """One blob's way through a channel, in seconds from the start of the iteration."""

    blob: int
    start_s: float
    finish_s: float


@dataclass(frozen=True)
class Timeline:
    """A simulated iteration.

    ``forward_s`` and ``backward_s`` are compute alone; ``forward_stall_s`` is what compute waited in the forward pass
    for memory and, at its end, for the last write; ``backward_stall_s`` what it waited for reads. ``peak_nbytes`` is
    the most that the blobs took at once.
    """

    forward_s: float
    backward_s: float
    forward_stall_s: float
    backward_stall_s: float
    writes: tuple[Transfer, ...]
    reads: tuple[Transfer, ...]
    peak_nbytes: int

    @property
    def iteration_s(self) -> float:
        """The whole iteration."""
        return self.forward_s + self.forward_stall_s + self.backward_s + self.backward_stall_s

    @property
    def slowdown(self) -> float:
        """The iteration over one without offload, 1 for no loss."""
        plain = self.forward_s + self.backward_s
        return self.iteration_s / plain if plain > 0 else (1.0 if self.iteration_s == 0 else math.inf)


def simulate(
    blobs: Sequence[ActivationProfile],
    selected: Sequence[int],
    forward_s: float,
    backward_s: float,
    *,
    budget: int | None = None,
    read_s: Sequence[float] | None = None,
    needed_s: Sequence[float] | None = None,
    synchronous: bool = False,
) -> Timeline:
    """Run one iteration with the ``selected`` blobs moved out.

    ``budget`` is the memory for blobs in bytes, None for no limit (everything is then read back at once). ``read_s``
    gives each blob's seconds to read, without it those to write. ``needed_s`` gives when each is needed, in seconds
    from the start of the backward pass without I/O; without it the backward pass mirrors the forward pass.
    ``synchronous`` makes compute wait for each transfer, and reads start where they are needed (Fastensor).

    A blob takes memory from ``ready_s``; moved out, until its write is done, and again from when its read is issued;
    it is used, and free, in an instant. Writes are drained before the backward pass starts. Reads are issued in the
    order of need, as soon as memory has room for them. Raises InfeasibleBudget where one blob has no room however
    long compute waits.
    """
    chosen = frozenset(selected)
    room = math.inf if budget is None else budget
    writes, stall, peak = _forward(blobs, chosen, room, synchronous)
    drain = max((write.finish_s for write in writes), default=0.0) - (forward_s + stall)
    stall += max(0.0, drain)
    mirror = backward_s / forward_s if forward_s > 0 else 0.0
    needed = [max(0.0, forward_s - blob.ready_s) * mirror for blob in blobs] if needed_s is None else needed_s
    seconds = [blob.stored_s for blob in blobs] if read_s is None else read_s
    start = forward_s + stall
    reads, waited, backward_peak = _backward(blobs, chosen, room, synchronous, start, seconds, needed)
    return Timeline(forward_s, backward_s, stall, waited, writes, reads, max(peak, backward_peak))


def _forward(
    blobs: Sequence[ActivationProfile], chosen: frozenset[int], room: float, synchronous: bool
) -> tuple[tuple[Transfer, ...], float, int]:
    """The writes, what compute waited for memory (or, synchronous, for writes), and the peak."""
    writes: list[Transfer] = []
    gone = 0  # writes that have given their memory back
    stall = idle_from = 0.0
    resident = peak = 0
    for i in sorted(range(len(blobs)), key=lambda i: blobs[i].ready_s):
        now = blobs[i].ready_s + stall
        want = resident + blobs[i].nbytes
        while gone < len(writes) and (writes[gone].finish_s <= now or want > room):
            stall += max(0.0, writes[gone].finish_s - now)
            now = max(now, writes[gone].finish_s)
            want -= blobs[writes[gone].blob].nbytes
            gone += 1
        _check(want, room, i, "forward")
        resident = want
        peak = max(peak, resident)
        if i in chosen:
            begin = max(now, idle_from)
            idle_from = begin + blobs[i].stored_s
            writes.append(Transfer(i, begin, idle_from))
            stall += idle_from - now if synchronous else 0.0
    return tuple(writes), stall, peak


def _backward(
    blobs: Sequence[ActivationProfile],
    chosen: frozenset[int],
    room: float,
    synchronous: bool,
    start: float,
    read_s: Sequence[float],
    needed_s: Sequence[float],
) -> tuple[tuple[Transfer, ...], float, int]:
    """The reads, what compute waited for them, and the peak."""
    uses = sorted(range(len(blobs)), key=lambda i: (needed_s[i], -i))
    queue = [i for i in uses if i in chosen]
    reads: list[Transfer] = []
    resident = peak = sum(blob.nbytes for i, blob in enumerate(blobs) if i not in chosen)
    stall, idle_from, now = 0.0, start, start
    ready: dict[int, float] = {}
    for use in uses:
        if synchronous:
            now = max(now, start + needed_s[use] + stall)
        while len(reads) < len(queue) and (not synchronous or queue[len(reads)] == use):
            i = queue[len(reads)]
            if resident + blobs[i].nbytes > room:
                break
            resident += blobs[i].nbytes
            begin = max(now, idle_from)
            idle_from = begin + read_s[i]
            reads.append(Transfer(i, begin, idle_from))
            ready[i] = idle_from
        peak = max(peak, resident)
        now = max(now, start + needed_s[use] + stall)
        if use in chosen:
            if use not in ready:
                _check(resident + blobs[use].nbytes, room, use, "backward")
            stall += max(0.0, ready[use] - now)
            now = max(now, ready[use])
        resident -= blobs[use].nbytes
    return tuple(reads), stall, peak


def _check(want: int, room: float, blob: int, direction: str) -> None:
    if want > room:
        cure = "move out more of the blobs before it, or make the budget larger"
        raise InfeasibleBudget(f"blob {blob} in the {direction} pass", want, int(room), cure)
