"""Which tool a dictionary chose, what it expects of each, and the reason in words: the plan of one bucket."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fastio.dicts.sizes import SHAPES, bucket_nbytes, describe_seconds, shape
from fastio.sizes import format_size

MEASURED, NEARBY, FIRST_CALLS, PRIOR, UNKNOWN = "measured", "nearby sizes", "first calls", "prior", "unknown"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which tool to use now.

    ``order`` holds every candidate, ``tool`` first and the others best first: what to try when a tool refuses.
    ``exploring`` is True when the tool is tried to learn its time, not because it is expected to be the fastest.
    """

    tool: str
    reason: str
    exploring: bool
    order: tuple[str, ...]


class Opinion(NamedTuple):
    """The time that a tool is expected to take in one bucket.

    ``mean`` and ``deviation`` are those of log(seconds) less the shape. ``source`` says what they are based on:
    ``"measured"``, ``"nearby sizes"``, ``"first calls"``, ``"prior"`` or ``"unknown"``; ``samples`` were taken in the
    bucket itself, ``nearby`` within four octaves of it. ``known``: the tool was measured in the bucket or near it; for
    a process's first call, first calls suffice. ``slowdown``: by how much the mean would be less if a tool that became
    slower, or may have, were as fast as before. ``informative``: the standard deviation of the change that one call
    may make to the mean, relative to the best tool's.
    """

    tool: str
    mean: float
    deviation: float
    source: str
    samples: int
    nearby: int
    known: bool
    slowdown: float = 0.0
    informative: float = 0.0

    def seconds(self, bucket: int) -> float:
        """The expected seconds at the bucket's own size."""
        return math.exp(min(self.mean + SHAPES[bucket], 100.0))


@dataclass(slots=True)
class Plan:
    """The expected times in one bucket, for a process's ``first`` call or a later one.

    ``usable``: the tool to use, then the others, the fastest first. ``failing``: tools that failed lately.
    ``fastest``: of the usable ones. ``seconds``: the expected time of the tool to use, ``has_prior``: whether a prior
    lists it. The plan is valid up to the tuner's age ``until``. No other tool is worth a try before the context has
    spent the seconds ``due``.
    """

    bucket: int
    usable: Sequence[Opinion]
    failing: Sequence[Opinion]
    fastest: Opinion
    first: bool
    seconds: float
    until: int
    has_prior: bool
    choice: Choice = field(init=False)
    due: float = 0.0
    _factors: dict[str, float] | None = None  # expected seconds of each known tool over exp(shape)

    def __post_init__(self) -> None:
        self.choice = self.choice_of(self.usable[0])

    @property
    def ranked(self) -> Sequence[Opinion]:
        """The opinions of all tools, the best first."""
        return (*self.usable, *self.failing)

    def times(self, nbytes: float) -> dict[str, float]:
        """Seconds expected at a size of the bucket, of the usable tools that are known, the fastest first."""
        if self._factors is None:
            known = sorted((one for one in self.usable if one.known), key=lambda one: one.mean)
            self._factors = {one.tool: math.exp(min(one.mean, 80.0)) for one in known}
        scale = math.exp(shape(nbytes))
        return {tool: factor * scale for tool, factor in self._factors.items()}

    def choice_of(self, chosen: Opinion) -> Choice:
        """The choice of one of the usable tools; another than the best is a try."""
        why = _reason(self.bucket, self.usable, chosen, self.fastest, self.first)
        order = (chosen.tool, *(one.tool for one in self.ranked if one is not chosen))
        return Choice(chosen.tool, why, chosen is not self.usable[0], order)


def _reason(bucket: int, ranked: Sequence[Opinion], chosen: Opinion, fastest: Opinion, first: bool) -> str:
    """Why ``chosen``, one of the usable tools ``ranked``; ``first``: at the process's first call."""
    if len(ranked) == 1:
        return f"{chosen.tool} is the only tool that can be used"
    best, size = ranked[0], format_size(bucket_nbytes(bucket))
    if chosen is not best:
        if not chosen.known:
            return f"trying {chosen.tool}, which was not measured near {size} yet"
        return f"trying {chosen.tool} again near {size}: it may be faster than {best.tool}"
    if not best.known:
        return _unmeasured(best, size)
    where = f"at {size}" if best.source == MEASURED else f"by the sizes around {size}"
    if first:
        where = f"as a process's first call {where}"
    took, other = describe_seconds(best.seconds(bucket)), ranked[1] if best is fastest else fastest
    others = describe_seconds(other.seconds(bucket))
    if best is not fastest:
        equal = f"{best.tool} and {other.tool} are equal in time {where} ({took} and {others})"
        return f"{equal}; {best.tool} takes less CPU"
    if not other.known:
        return f"{best.tool} takes {took} {where}; {other.tool}, not measured there, is expected to take {others}"
    return f"{best.tool} was the fastest {where}: {took}, then {other.tool} {others}"


def _unmeasured(best: Opinion, size: str) -> str:
    if best.source == FIRST_CALLS:
        return f"{best.tool} was the fastest near {size} as far as first calls tell"
    if best.source == PRIOR:
        return f"nothing is measured near {size} yet: the priors put {best.tool} first"
    return f"nothing is known near {size} yet: {best.tool} is the first that can be used"
