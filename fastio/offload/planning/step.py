"""A model of one training step whose activations are kept, moved out and back, or recomputed. Pure. Bytes and seconds.

It follows what an Offload does: writes wait while ``window`` bytes wait for theirs, reads go ahead in the order of need
as far as there is memory, and what is recomputed stays for its next use unless the memory is needed before.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from fastio.offload.planning.overlap import ActivationProfile
from fastio.offload.planning.timeline import Timeline, Transfer


class RecomputeOption(NamedTuple):
    """The seconds it takes to recompute an activation, and the activations it is made from, which must be there."""

    seconds: float
    sources: tuple[int, ...] = ()


class Forward(NamedTuple):
    """A forward pass: its seconds, and those from its end until the last write has ended.

    ``stay``: what moved last, as much as the window has room for, is still in memory, and need not be read.
    ``writes``: activations, and from when until when they are written.
    """

    seconds: float
    written_s: float
    stay: list[int]
    writes: list[tuple[int, float, float]]


@dataclass(frozen=True)
class Step:
    """A training step without offload, and what could be done in it.

    ``forward_s`` and ``backward_s`` are its compute. ``uses``: the activations that backward needs, in order, and when,
    since it began; each may be needed more than once. ``read_s``: the seconds to read each back. ``options``: those
    that can be recomputed. ``window``: bytes that may wait for their write. ``memory``: bytes for activations in
    backward, and ``reading``: while some are read ahead.
    """

    activations: Sequence[ActivationProfile]
    forward_s: float
    backward_s: float
    uses: Sequence[tuple[float, int]]
    read_s: Sequence[float]
    options: Mapping[int, RecomputeOption]
    deepest: int = 8  # recomputations that one use may need, each for the next
    window: float = math.inf
    memory: float = math.inf
    reading: float = math.inf

    @cached_property
    def last(self) -> dict[int, int]:
        """The place in ``uses`` of the last use of each activation, or of what may be made from it: then it is free."""
        last = {i: place for place, (_, i) in enumerate(self.uses)}
        for i in sorted(self.options, reverse=True):
            for source in self.options[i].sources if i in last else ():
                last[source] = max(last.get(source, 0), last[i])
        return last

    @cached_property
    def freed(self) -> dict[int, list[int]]:
        """What is freed after each place in ``uses``."""
        freed: defaultdict[int, list[int]] = defaultdict(list)
        for i, place in self.last.items():
            freed[place].append(i)
        return dict(freed)

    def seconds(self, moved: Collection[int], recomputed: Collection[int], limit: float = math.inf) -> float:
        """Return the seconds of a step.

        Infinite if they reach ``limit``, if ``deepest`` is exceeded, or if something does not fit the memory. All that
        moved counts as read back: plans that rely on what is still in the window were no faster when they ran.
        """
        forward = self.forward(moved)._replace(stay=[])
        return forward.seconds + Backward(self, moved, recomputed, forward).run(limit - forward.seconds)

    def timeline(self, moved: Collection[int], recomputed: Collection[int]) -> Timeline | None:
        """Return when everything happens; None if something does not fit the memory."""
        forward = self.forward(moved)
        backward = Backward(self, moved, recomputed, forward)
        backward_s = backward.run()
        if backward_s == math.inf:
            return None
        begin = forward.seconds
        return Timeline(
            self.forward_s,
            self.backward_s,
            forward.seconds - self.forward_s,
            backward_s - self.backward_s,
            tuple(Transfer(*write) for write in forward.writes),
            tuple(Transfer(i, begin + start, begin + end) for i, start, end in backward.reads),
        )

    def room(self, recomputed: Collection[int]) -> int:
        """Return the most bytes that one recomputation makes: with what it is made from, if that is recomputed too."""
        found: dict[int, frozenset[int]] = {}

        def needed(i: int, depth: int) -> frozenset[int]:
            if i not in found:
                sources = self.options[i].sources if i in recomputed and depth <= self.deepest else ()
                leaving = [needed(j, depth + 1) for j in sources if j in recomputed]
                found[i] = frozenset((i,)).union(*leaving)
            return found[i]

        sizes = (sum(self.activations[j].nbytes for j in needed(i, 1)) for i in recomputed)
        return max(sizes, default=0)

    def forward(self, moved: Collection[int]) -> Forward:
        """Run the forward pass. An activation waits until it fits ``window`` with those that wait for their write."""
        late = channel = 0.0
        writes: list[tuple[int, float, float]] = []
        waiting: deque[tuple[float, int]] = deque()
        nbytes = 0
        order = sorted(moved)
        for i in order:
            activation = self.activations[i]
            nbytes += activation.nbytes
            now = activation.ready_s + late
            begin = max(channel, now)
            channel = begin + activation.stored_s
            writes.append((i, begin, channel))
            waiting.append((channel, activation.nbytes))
            while waiting and (waiting[0][0] <= now or nbytes > self.window):
                ended, size = waiting.popleft()
                now = max(now, ended)
                nbytes -= size
            late = now - activation.ready_s
        room, stay = self.window, len(order)
        while stay and self.activations[order[stay - 1]].nbytes <= room:
            stay -= 1
            room -= self.activations[order[stay]].nbytes
        seconds = self.forward_s + late
        return Forward(seconds, max(0.0, channel - seconds), order[stay:], writes)


class Backward:
    """Runs the backward pass of a :class:`Step` once. ``reads``: what was read, from when until when since it began."""

    def __init__(self, step: Step, moved: Collection[int], recomputed: Collection[int], forward: Forward) -> None:
        self._step = step
        self._nbytes = [activation.nbytes for activation in step.activations]
        self._moved = moved
        self._recomputed = recomputed
        self._channel = forward.written_s
        self.reads: list[tuple[int, float, float]] = []
        self._late = 0.0
        self._over: set[int] = set()  # those that were used last
        # What is in memory, and from when on. What stays is there for good, until it was used last.
        self._stays = {i for i in step.last if i not in moved and i not in recomputed}
        self._there = dict.fromkeys((*self._stays, *(i for i in forward.stay if i in step.last)), 0.0)
        self._taken = sum(self._nbytes[i] for i in self._there)
        self._room = min(step.reading, step.memory - step.room(recomputed))  # while some are read ahead
        self._ahead = deque(self._reads())

    def run(self, limit: float = math.inf) -> float:
        """Return the seconds it takes; infinite if they reach ``limit``, or if it cannot run."""
        step = self._step
        self._read_ahead(0.0)
        for place, (at, i) in enumerate(step.uses):
            if step.backward_s + self._late >= limit or not self._have(i, at, 1, {i}):
                return math.inf
            for j in step.freed.get(place, ()):
                self._over.add(j)
                self._drop(j)
            self._read_ahead(at + self._late)
        return step.backward_s + self._late

    def _reads(self) -> list[int]:
        """The moved activations in the order in which they are needed."""
        found: dict[int, None] = {}

        def need(i: int, depth: int) -> None:
            if i in self._moved:
                found.setdefault(i)
            elif i in self._recomputed and depth <= self._step.deepest:
                for source in self._step.options[i].sources:
                    need(source, depth + 1)

        seen: set[int] = set()
        for _, i in self._step.uses:
            if i not in seen:
                seen.add(i)
                need(i, 1)
        return list(found)

    def _read_ahead(self, now: float) -> None:
        while self._ahead:
            i = self._ahead[0]
            if i not in self._there and i not in self._over:
                if self._taken + self._nbytes[i] > self._room:
                    break
                self._read(i, now)
            self._ahead.popleft()

    def _read(self, i: int, now: float) -> None:
        begin = max(self._channel, now)
        self._channel = begin + self._step.read_s[i]
        self.reads.append((i, begin, self._channel))
        self._put(i, self._channel)

    def _have(self, i: int, at: float, depth: int, needed: set[int]) -> bool:
        """Have an activation in memory, beside those that are needed for the same use. Return whether it fits."""
        if i not in self._there and i not in self._stays:
            option = self._step.options[i] if i in self._recomputed else None
            if option is not None:
                if depth > self._step.deepest:
                    return False
                for source in option.sources:
                    needed.add(source)
                    if not self._have(source, at, depth + 1, needed):
                        return False
            if not self._make_room(i, needed):
                return False
            if option is None:
                self._read(i, at + self._late)
            else:
                self._late += option.seconds
                self._put(i, 0.0)
        self._late = max(self._late, self._there.get(i, 0.0) - at)
        return True

    def _make_room(self, i: int, needed: set[int]) -> bool:
        """Drop what is needed last, if one more does not fit."""
        if self._taken + self._nbytes[i] > self._step.memory:
            others = [(self._step.last.get(j, 0), j) for j in self._there if j not in needed and j not in self._stays]
            for _, j in sorted(others, reverse=True):
                self._drop(j)
                if self._taken + self._nbytes[i] <= self._step.memory:
                    break
        return self._taken + self._nbytes[i] <= self._step.memory

    def _put(self, i: int, when: float) -> None:
        self._there[i] = when
        self._taken += self._nbytes[i]

    def _drop(self, i: int) -> None:
        if self._there.pop(i, None) is not None:
            self._taken -= self._nbytes[i]
