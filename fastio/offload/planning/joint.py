"""Chooses for each activation: keep it, move it out and back, or recompute it in backward. Pure. Bytes and seconds.

Recomputing costs compute in backward, and the activations that it reads must be there. Moving costs nothing while its
channel keeps up with compute. So what is moved should take as long as compute, and the rest of what must leave should
be recomputed, cheapest per byte first. (Checkmate, Jain et al. 2020, poses recomputation alone as an integer program;
POET, Patil et al. 2022, adds paging.)
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import NamedTuple

from fastio.offload.planning.optimal import optimal
from fastio.offload.planning.step import Step

EXACT = 7  # activations for which all choices are tried
_STARTS = 8  # numbers of recomputed activations from which the search starts
_EVALUATED = 150_000  # activations looked at in one search
_SMALL = 2000  # times smaller than all together: such an activation is not worth a change


class Choice(NamedTuple):
    """What moves, what is recomputed (both ascending), and the modelled seconds of a step."""

    moved: tuple[int, ...]
    recomputed: tuple[int, ...]
    seconds: float


def joint(step: Step, need_bytes: int) -> Choice:
    """Return the choice with the least seconds that was found of those that free ``need_bytes``.

    The activations must have that many bytes. The result is exact for ``EXACT`` activations or fewer. It is never worse
    than the best selection that is only recomputed, nor than the one that :func:`optimal` moves. Equal arguments give
    equal results.
    """
    search = _Search(step, need_bytes)
    if need_bytes <= 0:
        return search.choice(frozenset(), frozenset())
    if len(step.activations) <= EXACT:
        return search.best_of_all()
    starts = sorted(set(search.starts()), key=lambda choice: choice.seconds)
    return min((search.improved(start) for start in starts[:3]), key=lambda choice: choice.seconds)


class _Search:
    def __init__(self, step: Step, need: int) -> None:
        self.step = step
        self.need = need
        self.nbytes = [activation.nbytes for activation in step.activations]
        least = sum(self.nbytes) // _SMALL
        self.large = [i for i, nbytes in enumerate(self.nbytes) if nbytes > least]

    def choice(self, moved: Collection[int], recomputed: Collection[int], limit: float = math.inf) -> Choice:
        seconds = self.step.seconds(moved, recomputed, limit)
        return Choice(tuple(sorted(moved)), tuple(sorted(recomputed)), seconds)

    def best_of_all(self) -> Choice:
        ways = [(0, 1, 2) if i in self.step.options else (0, 1) for i in range(len(self.nbytes))]
        found: Choice | None = None
        for way in itertools.product(*ways):
            if sum(size for size, one in zip(self.nbytes, way, strict=True) if one) >= self.need:
                moved, recomputed = ({i for i, one in enumerate(way) if one == kind} for kind in (1, 2))
                choice = self.choice(moved, recomputed)
                if found is None or choice.seconds < found.seconds:
                    found = choice
        assert found is not None, "all activations together are enough"
        return found

    def starts(self) -> Iterable[Choice]:
        """Moving alone, recomputing alone if that is enough, and the cheapest recomputations with the rest moved."""
        options = self.step.options
        by_price = sorted(options, key=lambda i: options[i].seconds / max(1, self.nbytes[i]))
        counts = {round(len(by_price) * part / _STARTS) for part in range(_STARTS + 1)}
        for count in sorted(counts):
            chosen = frozenset(by_price[:count])
            yield self.choice(self.moved_beside(chosen), chosen)
            yield self.choice(self.first_beside(chosen), chosen)
        if sum(self.nbytes[i] for i in options) >= self.need:
            indices = sorted(options)
            costs = [replace(self.step.activations[i], transfer_s=options[i].seconds, ratio=1.0) for i in indices]
            limit = sum(cost.transfer_s + cost.ready_s for cost in costs)
            least = frozenset(indices[i] for i in optimal(costs, self.need, limit, strict_paper=True))
            yield self.choice(frozenset(), least)

    def moved_beside(self, recomputed: frozenset[int]) -> frozenset[int]:
        """Return what to move if these are recomputed."""
        others = [i for i in range(len(self.nbytes)) if i not in recomputed]
        need = self.need - sum(self.nbytes[i] for i in recomputed)
        chosen = optimal([self.step.activations[i] for i in others], need, self.step.forward_s)
        return frozenset(others[i] for i in chosen)

    def first_beside(self, recomputed: frozenset[int]) -> frozenset[int]:
        """Return the first activations that are enough if these are recomputed: backward frees the others soon."""
        need = self.need - sum(self.nbytes[i] for i in recomputed)
        first: list[int] = []
        for i in self.large:
            if need > 0 and i not in recomputed:
                first.append(i)
                need -= self.nbytes[i]
        return frozenset(first) if need <= 0 else self.moved_beside(recomputed)

    def improved(self, choice: Choice) -> Choice:
        """Change one activation at a time, or one for another, as long as that saves time."""
        count = len(self.nbytes)
        left = _EVALUATED // count
        freed = sum(self.nbytes[i] for i in (*choice.moved, *choice.recomputed))
        improving = True
        while improving and left > 0:
            improving = False
            for change in self._changes(choice):
                moved, recomputed = set(choice.moved), set(choice.recomputed)
                now = freed
                for i, way in change:
                    now -= self.nbytes[i] if i in moved or i in recomputed else 0
                    moved.discard(i)
                    recomputed.discard(i)
                    if way:
                        (moved if way == 1 else recomputed).add(i)
                        now += self.nbytes[i]
                if now < self.need:
                    continue
                left -= 1
                other = self.choice(moved, recomputed, choice.seconds)
                if other.seconds < choice.seconds * (1 - 1e-12):
                    choice, freed, improving = other, now, True
                if left <= 0:
                    break
        return choice

    def _changes(self, choice: Choice) -> Iterable[tuple[tuple[int, int], ...]]:
        """Changes to try: activations with their new way (0: keep, 1: move, 2: recompute)."""
        ways = {i: (0, 1, 2) if i in self.step.options else (0, 1) for i in self.large}
        yield from (((i, way),) for i in self.large for way in ways[i])
        leaving = {*choice.moved, *choice.recomputed}
        pairs = [(i, j) for i in self.large for j in self.large if i in leaving and i != j]
        random.Random(0).shuffle(pairs)  # there may be more than are tried
        for i, j in pairs:
            yield from (((i, 0), (j, way)) for way in ways[j][1:])
