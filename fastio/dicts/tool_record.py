"""The record of one tool in one context: its last times at each size, its failures, its changes of speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fastio.dicts import constants
from fastio.dicts.change_detection import ChangeDetector
from fastio.dicts.choice import Opinion

KEPT = 5  # times that are kept of a tool in a bucket


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a tool failed, how often in a row, and the call of its context before which it is not tried again."""

    reason: str
    count: int
    until: int


@dataclass(slots=True)
class Samples:
    """The last times of one tool in one bucket, as logarithms of seconds at the bucket's own size.

    ``firsts`` are those of first calls of a process. ``fresh`` and ``fresh_firsts`` count those that are not on disk
    yet. ``rewritten``: the times on disk are to be replaced.
    """

    values: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    fresh: int = 0
    fresh_firsts: int = 0
    rewritten: bool = False

    def add(self, value: float, first: bool) -> None:
        if first:
            self.firsts = [*self.firsts, value][-KEPT:]
            self.fresh_firsts = min(self.fresh_firsts + 1, KEPT)
        else:
            self.values = [*self.values, value][-KEPT:]
            self.fresh = min(self.fresh + 1, KEPT)

    def merge(self, newer: Samples) -> None:
        """Append the fresh times of the same tool and bucket in another process."""
        kept = Samples() if newer.rewritten else self
        self.values = [*kept.values, *_last(newer.values, newer.fresh)][-KEPT:]
        self.firsts = [*kept.firsts, *_last(newer.firsts, newer.fresh_firsts)][-KEPT:]

    def clear(self) -> None:
        """Drop the times, here and on disk."""
        self.values, self.firsts, self.fresh, self.fresh_firsts, self.rewritten = [], [], 0, 0, True

    def written(self) -> None:
        self.fresh = self.fresh_firsts = 0
        self.rewritten = False


@dataclass(slots=True)
class Budget:
    """A ``share`` of the context's seconds since ``begun``; ``paid`` seconds of it are used.

    ``credit``: usual calls that may be used at once.
    """

    share: float
    begun: float = 0.0
    paid: float = 0.0
    credit: float = 0.0

    def due(self, cost: float, usual: float) -> float:
        """The context's seconds at which ``cost`` more seconds may be used. ``usual``: the seconds of a usual call."""
        least = self.paid + cost - self.credit * usual
        return self.begun + least / self.share


class Try(NamedTuple):
    """A call that tries another tool than the best, which is expected to take ``seconds``; the budget that it uses."""

    opinion: Opinion
    call: int
    seconds: float
    budget: Budget


@dataclass(slots=True)
class ToolRecord:
    """The record of one tool.

    ``used``: a call of this process used it. ``tried``: a try whose time is not known yet. ``speed_before``: its speed
    before it became slower, while it is slower. ``recovery``: the budget for trying whether a tool that became slower,
    or may have, is as fast as before. ``last_used``: the context's seconds at its last call in each band of sizes.
    """

    detector: ChangeDetector = field(default_factory=ChangeDetector)
    samples: dict[int, Samples] = field(default_factory=dict)
    failure: Failure | None = None
    used: bool = False
    tried: Try | None = None
    speed_before: float | None = None
    recovery: Budget = field(default_factory=lambda: Budget(constants.LOOKS, credit=constants.FIRST_LOOK))
    last_used: dict[int, float] = field(default_factory=dict)

    def cell(self, bucket: int) -> Samples:
        """The samples of a bucket; made empty if there are none."""
        return self.samples.setdefault(bucket, Samples())

    def count(self, bucket: int) -> tuple[int, int]:
        """The number of times that are kept of a bucket, and of all buckets near it together."""
        samples = self.samples
        nearby = sum(len(near.values) for near in self._near(bucket))
        return len(samples[bucket].values) if bucket in samples else 0, nearby

    def began(self, bucket: int) -> int:
        """The number of processes whose first call of the tool was at or near a bucket, as far as it is kept."""
        return sum(len(near.firsts) for near in self._near(bucket))

    def _near(self, bucket: int) -> Iterator[Samples]:
        samples = self.samples
        return (samples[at] for at in range(bucket - constants.NEAR, bucket + constants.NEAR + 1) if at in samples)

    def fail(self, reason: str, call: int) -> None:
        count = 1 if self.failure is None else self.failure.count + 1
        wait = constants.RETRY_CALLS * constants.RETRY_GROWTH ** min(count - 1, constants.MOST_GROWTHS)
        self.failure = Failure(reason, count, call + wait)

    def fails(self, call: int) -> bool:
        """Whether the tool failed lately and is not to be tried yet."""
        return self.failure is not None and call < self.failure.until

    def doubt(self, spent: float, speed_before: float | None = None) -> None:
        """Begin a new budget for trying the tool again, which may be slower than before, when it had this speed."""
        self.recovery = Budget(constants.LOOKS, spent, credit=constants.FIRST_LOOK)
        if speed_before is not None:
            self.speed_before = speed_before if self.speed_before is None else min(self.speed_before, speed_before)


BLANK = ToolRecord()
"""The record of a tool that has none. It is never changed."""


def median(values: Sequence[float]) -> float:
    """The median of at least one value."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _last(values: Sequence[float], count: int) -> Sequence[float]:
    return values[-count:] if count else ()
