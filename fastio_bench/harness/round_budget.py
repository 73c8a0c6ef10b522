"""How many rounds each size gets, so that a sweep ends in time. Pure: it takes seconds and gives numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

GOOD = 3  # rounds: fewer only when all sizes have no more


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds that something takes by its bytes: ``fixed + per_byte * nbytes``."""

    fixed: float
    per_byte: float

    def at(self, nbytes: int) -> float:
        """Seconds for so many bytes."""
        return self.fixed + self.per_byte * nbytes


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one size: once to set up, and once a round."""

    setup: float
    round: float

    def of(self, rounds: int, scale: float = 1.0) -> float:
        """Seconds of so many rounds, every forecast second taking ``scale`` real ones; no rounds cost nothing."""
        return scale * (self.setup + rounds * self.round) if rounds else 0.0


def through(small: tuple[int, float], large: tuple[int, float]) -> Line:
    """The line through two measured points (bytes, seconds), level where both are of one size.

    Noise makes neither of its terms negative.
    """
    (fewer, quick), (more, slow) = small, large
    per_byte = max(0.0, (slow - quick) / (more - fewer)) if more > fewer else 0.0
    return Line(max(0.0, quick - per_byte * fewer), per_byte)


def rounds_within(costs: Sequence[Cost], seconds: float, most: int, scale: float = 1.0) -> list[int]:
    """Rounds for each size, ``most`` at most, that end within ``seconds``.

    Sizes for which there is no time at all are left out (0), the costliest first. Then the one that takes longest loses
    a round, none going below three as long as another has more.
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
class Pace:
    """Rounds for one size after another: planned anew before each, from what those before it really took.

    ``costs`` has the forecast by size, in the order in which they come.
    """

    costs: Mapping[str, Cost]
    seconds: float
    most: int

    def __post_init__(self) -> None:
        self.given: dict[str, int] = {}  # the rounds of the sizes that are done
        self._forecast = self._real = 0.0
        self._left = dict(self.costs)

    def plan(self) -> dict[str, int]:
        """Rounds of every size that is still to come."""
        found = rounds_within(list(self._left.values()), self.seconds - self._real, self.most, self.scale)
        return dict(zip(self._left, found, strict=True))

    @property
    def scale(self) -> float:
        """Real seconds for each that was forecast, so far."""
        return self._real / self._forecast if self._forecast and self._real else 1.0

    def done(self, name: str, rounds: int, seconds: float) -> None:
        """A size is done (or left out, with no rounds) and took so long."""
        self.given[name] = rounds
        self._forecast += self._left.pop(name).of(rounds)
        self._real += seconds

    def total(self) -> float:
        """Seconds that the rounds of :meth:`plan` will take."""
        return sum(self._left[name].of(rounds, self.scale) for name, rounds in self.plan().items())
