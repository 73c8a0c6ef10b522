"""Simulates an iteration of :class:`fastio.Offload`: writes behind compute, reads ahead, each in a byte window.

Backward does not wait for writes, and what is needed before its write ends comes from memory. No clock, file or device.
Bytes and seconds.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Transfer:
    """An activation's transfer, in seconds from the start of the iteration."""

    activation: int
    start_s: float
    finish_s: float


@dataclass(frozen=True)
class Timeline:
    """A simulated iteration.

    ``forward_s`` and ``backward_s`` are compute alone. ``forward_stall_s`` is the time that forward waited for memory
    and, at its end, for the last write. ``backward_stall_s`` is the time that backward waited for reads.
    ``peak_nbytes`` is the most memory that the activations took.
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
        """Seconds of the whole iteration."""
        return self.forward_s + self.forward_stall_s + self.backward_s + self.backward_stall_s

    @property
    def slowdown(self) -> float:
        """The iteration over one without offload; 1 for no loss."""
        plain = self.forward_s + self.backward_s
        return self.iteration_s / plain if plain > 0 else (1.0 if self.iteration_s == 0 else math.inf)


@dataclass(frozen=True, slots=True)
class Move:
    """One activation of an iteration, in forward order.

    ``ready_s`` is when it is made, in seconds of forward compute; ``needed_s`` when it is needed, in seconds of
    backward compute (None: never).
    """

    nbytes: int
    write_s: float
    read_s: float
    ready_s: float
    needed_s: float | None


def predict(
    moves: Sequence[Move], selected: Collection[int], forward_s: float, backward_s: float, window: int, ahead: int
) -> Timeline:
    """Run one iteration in which the ``selected`` activations move out and back.

    Compute waits while more than ``window`` bytes wait for their write, and for what it needs and is not back. The last
    ``window`` bytes are still in memory when backward begins. At each use of an activation, the next reads begin, as
    far as they and the activation in use fit into ``ahead`` bytes.
    """
    chosen = frozenset(selected)
    writes, stall, peak = _forward(moves, chosen, window)
    written_s = {write.activation: write.finish_s for write in writes}
    start = forward_s + stall
    for i in _last(moves, chosen, window):
        written_s[i] = math.inf  # as if it were: it need not be read
    reads, waited, backward_peak = _backward(moves, chosen, written_s, start, ahead)
    return Timeline(forward_s, backward_s, stall, waited, writes, reads, max(peak, backward_peak))


def _forward(moves: Sequence[Move], chosen: frozenset[int], window: int) -> tuple[tuple[Transfer, ...], float, int]:
    """Return the writes, the time compute waited for room in the window, and the peak."""
    writes: list[Transfer] = []
    under_way: deque[Transfer] = deque()
    stall = idle_from = 0.0
    kept = waiting = peak = 0
    for i, move in enumerate(moves):
        if i not in chosen:
            kept += move.nbytes
            peak = max(peak, kept + waiting)
            continue
        now = move.ready_s + stall
        waiting += move.nbytes
        begin = max(now, idle_from)
        idle_from = begin + move.write_s
        writes.append(Transfer(i, begin, idle_from))
        under_way.append(writes[-1])
        peak = max(peak, kept + waiting)
        while under_way and (under_way[0].finish_s <= now or waiting > window):
            over = under_way.popleft()
            stall += max(0.0, over.finish_s - now)
            now = max(now, over.finish_s)
            waiting -= moves[over.activation].nbytes
    return tuple(writes), stall, peak


def _last(moves: Sequence[Move], chosen: frozenset[int], room: int) -> list[int]:
    """Return the chosen activations that were made last and fit into ``room`` bytes."""
    last: list[int] = []
    for i in sorted(chosen, reverse=True):
        room -= moves[i].nbytes
        if room < 0:
            break
        last.append(i)
    return last


def _backward(
    moves: Sequence[Move], chosen: frozenset[int], written_s: dict[int, float], start: float, ahead: int
) -> tuple[tuple[Transfer, ...], float, int]:
    """Return the reads, the time compute waited for them, and the peak."""
    wanted = [(move.needed_s, -i) for i, move in enumerate(moves) if move.needed_s is not None]
    uses = [-i for _, i in sorted(wanted)]
    resident = peak = sum(move.nbytes for i, move in enumerate(moves) if i not in chosen)
    coming = deque(i for i in uses if i in chosen)
    reads: list[Transfer] = []
    ready: dict[int, float] = {}
    stall, idle_from, held, in_use = 0.0, start, 0, 0

    def fetch(i: int, now: float) -> None:
        nonlocal idle_from, held, peak
        held += moves[i].nbytes
        peak = max(peak, resident + held)
        if written_s[i] > now:  # still in memory
            ready[i] = now
            return
        begin = max(now, idle_from)
        idle_from = begin + moves[i].read_s
        reads.append(Transfer(i, begin, idle_from))
        ready[i] = idle_from

    for use in uses:
        now = start + (moves[use].needed_s or 0.0) + stall
        held, in_use = held - in_use, 0
        if use in chosen:
            if use not in ready:
                fetch(coming.popleft(), now)
            stall += max(0.0, ready[use] - now)
            now = max(now, ready[use])
            in_use = moves[use].nbytes
        else:
            resident -= moves[use].nbytes
        while coming and held + moves[coming[0]].nbytes <= ahead:
            fetch(coming.popleft(), now)
    return tuple(reads), stall, peak
