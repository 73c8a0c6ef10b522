"""Chooses the number of rounds for each size so that a sweep ends in time. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

GOOD = 3  # rounds: a size gets fewer only if no size has more


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds as a function of bytes: ``fixed + per_byte * nbytes``."""

    fixed: float
    per_byte: float

    def at(self, nbytes: int) -> float:
        """The seconds for ``nbytes``."""
        return self.fixed + self.per_byte * nbytes


@dataclass(frozen=True, slots=True)
class Cost:
    """The seconds of one size: set-up, and each round."""

    setup: float
    round: float

    def of(self, rounds: int, scale: float = 1.0) -> float:
        """The seconds of ``rounds`` rounds, 0 for none. A forecast second takes ``scale`` real ones."""
        return scale * (self.setup + rounds * self.round) if rounds else 0.0


def through(small: tuple[int, float], large: tuple[int, float]) -> Line:
    """The line through two measured points (bytes, seconds); constant if both have the same size.

    Neither term is negative, whatever the noise.
    """
    (fewer, quick), (more, slow) = small, large
    per_byte = max(0.0, (slow - quick) / (more - fewer)) if more > fewer else 0.0
    return Line(max(0.0, quick - per_byte * fewer), per_byte)


def rounds_within(costs: Sequence[Cost], seconds: float, most: int, scale: float = 1.0) -> list[int]:
    """The rounds for each size, at most ``most``, that end within ``seconds``.

    Sizes for which there is no time are left out (0 rounds), the costliest first. Then the size that takes the longest
    loses a round, again and again; none falls below three rounds while another has more.
    """

    def spent(index: int, rounds: int) -> float:
        return costs[index].of(rounds, scale)

    kept = list(range(len(costs)))
    while kept and sum(spent(index, 1) for index in kept) > seconds:
        kept.remove(max(kept, key=lambda index: spent(index, 1)))
    rounds = dict.fromkeys(kept, most)
    while rounds and sum(spent(index, count) for index, count in rounds.items()) > seconds:
        able = [index for index in kept if rounds[index] > GOOD] or [index for index in kept if rounds[index] > 1]
        rounds[max(able, key=lambda index: spent(index, rounds[index]))] -= 1
    return [rounds.get(index, 0) for index in range(len(costs))]


@dataclass
class RoundBudget:
    """Plans the rounds again before each size, from the time that the sizes before it took.

    ``costs`` has the forecast by size, in the order of the sweep.
    """

    costs: Mapping[str, Cost]
    seconds: float
    most: int

    def __post_init__(self) -> None:
        self.given: dict[str, int] = {}  # rounds of the finished sizes
        self._forecast = self._real = 0.0
        self._left = dict(self.costs)

    def plan(self) -> dict[str, int]:
        """The rounds of every remaining size."""
        found = rounds_within(list(self._left.values()), self.seconds - self._real, self.most, self.scale)
        return dict(zip(self._left, found, strict=True))

    @property
    def left(self) -> float:
        """The seconds that remain for the sizes to come."""
        return max(0.0, self.seconds - self._real)

    @property
    def scale(self) -> float:
        """Real seconds per forecast second, so far."""
        return self._real / self._forecast if self._forecast and self._real else 1.0

    def done(self, name: str, rounds: int, seconds: float) -> None:
        """Record a finished size, with its seconds (no rounds: it was left out)."""
        self.given[name] = rounds
        self._forecast += self._left.pop(name).of(rounds)
        self._real += seconds

    def total(self) -> float:
        """The seconds that the rounds of :meth:`plan` will take."""
        return sum(self._left[name].of(rounds, self.scale) for name, rounds in self.plan().items())
