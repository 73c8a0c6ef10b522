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
_EVALUATED = 900_000  # activations looked at in a search
_TRIES = 150  # changes, for each activation
_HOTTEST = 0.005  # of a step: by how much a change may lengthen it at first
_SMALL = 2000  # times smaller than all together: such an activation is not worth a change


class Choice(NamedTuple):
    """What moves, what is recomputed (both ascending), and the modelled seconds of a step."""

    moved: tuple[int, ...]
    recomputed: tuple[int, ...]
    seconds: float


def joint(step: Step, need_bytes: int) -> Choice:
    """Return the choice with the least seconds that was found of those that free ``need_bytes``.

    The activations must have that many bytes. The result is exact for ``EXACT`` activations or fewer. It is never worse
    than what :func:`optimal` moves, nor than to recompute all that can be, if that is enough. Equal arguments give
    equal results.
    """
    search = _Search(step, need_bytes)
    if need_bytes <= 0:
        return search.choice(frozenset(), frozenset())
    if len(step.activations) <= EXACT:
        return search.best_of_all()
    return search.improved(min(search.starts(), key=lambda choice: choice.seconds))


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

    def improved(self, start: Choice) -> Choice:
        """Change one or two activations at a time, by simulated annealing (Kirkpatrick et al. 1983).

        Changes that lengthen the step are accepted too, ever less of them: each saves only beside some others.
        """
        chance = random.Random(0)
        ways = {i: (0, 1, 2) if i in self.step.options else (0, 1) for i in self.large}  # 0: keep, 1: move
        now = dict.fromkeys(start.moved, 1) | dict.fromkeys(start.recomputed, 2)
        freed = sum(self.nbytes[i] for i in now)
        best, seconds = start, start.seconds
        hottest = _HOTTEST * (self.step.forward_s + self.step.backward_s)
        tries = min(_EVALUATED // len(self.nbytes), _TRIES * len(self.nbytes))
        for left in range(tries, 0, -1):
            changed = {i: chance.choice(ways[i]) for i in chance.choices(self.large, k=2)}
            freeing = freed + sum(self.nbytes[i] * ((way > 0) - (now.get(i, 0) > 0)) for i, way in changed.items())
            if freeing < self.need or all(now.get(i, 0) == way for i, way in changed.items()):
                continue
            other = {**now, **changed}
            moved, recomputed = ({i for i, way in other.items() if way == kind} for kind in (1, 2))
            limit = seconds - hottest * left / tries * math.log(1 - chance.random())
            choice = self.choice(moved, recomputed, limit)
            if choice.seconds < limit:
                now, freed, seconds = other, freeing, choice.seconds
                best = min(best, choice, key=lambda one: one.seconds)
        return best
