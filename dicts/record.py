"""What is known of one tool in one context, and the drift of its speed. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fastio._native import MEDIAN_VARIANCE, Curve, lower_median
from fastio.dicts.trial import Trial

BAND = 8  # buckets: two octaves, in which refreshing is counted
RETRY_CALLS = 256
RETRY_GROWTH = 4
MOST_GROWTHS = 4
DRIFT_CALLS = 3  # this many surprises in a row are a change of speed,
DRIFT_LOG_CHANCE = -9.2  # or as many as would come about by chance once in 10,000 times
RATE_STEP = 0.02
SUSPICIOUS_CALLS = 2  # after so many surprises in a row it is asked whether it is the tool or the machine
DRIFT_SPREAD = 0.4  # surprises further apart than this are hardly a new speed: twice as many are waited for
DRIFT_LEAST = 0.3  # a surprise is further than this from what was expected, as a logarithm,
DRIFT_DEVIATIONS = 3.5  # and further than this many deviations
DRIFT_DOUBT, DRIFT_DOUBT_NEAR, DRIFT_DOUBT_FAR = 0.25, 0.4, 0.8
CREEP_CALLS = 16  # so many deviations whose median is off are one too, though none of them is a surprise:
CREEP_LEAST = 0.3  # off by this much as a logarithm,
CREEP_DEVIATIONS = 6.0  # and by so many deviations of the median,
CREEP_AGREED = 0.1  # and three quarters of them by this much: else the machine was busy for a while, and not with all
MOST_SUSPICION = 2.0
MOST_BACKOFF = 16
NEVER = -(1 << 30)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a tool refused, how often in a row, and the call of its context before which it is not tried again."""

    reason: str
    count: int
    until: int


@dataclass(slots=True)
class Record:
    """All that is known of one tool in one context.

    ``last`` is the call of each band at which the tool was last used; ``pending`` the call of the context at which it
    was last handed out to be tried; ``backoff`` stretches its refreshing while it disappoints. ``suspicion`` is a
    deviation added to its estimates while it seems to have become faster; ``rate`` the usual share of surprises.
    ``looks`` is how often it was looked at again in vain, ``excused`` how often in a row the machine was to blame.
    ``shift`` is the logarithm of what its changes of speed come to, ``stake`` what a try of it was thought to cost and
    the best tool to take, seconds.
    """

    curve: Curve = field(default_factory=Curve)
    failure: Failure | None = None
    suspicion: float = 0.0
    shift: float = 0.0
    stake: tuple[float, float] | None = None
    rate: float = RATE_STEP
    backoff: int = 1
    pending: int = NEVER
    last: dict[int, int] = field(default_factory=dict)
    looks: int = 0
    excused: int = 0
    trial: Trial = field(default_factory=Trial)
    surprises: list[tuple[int, float]] = field(default_factory=list)
    recent: list[tuple[int, float]] = field(default_factory=list)

    def failing(self, call: int) -> bool:
        """Whether the tool failed and is not to be tried again yet."""
        return self.failure is not None and self.failure.until >= call

    def fail(self, call: int, reason: str) -> None:
        """Avoid the tool for a while, longer each time."""
        count = 1 if self.failure is None else self.failure.count + 1
        wait = RETRY_CALLS * RETRY_GROWTH ** min(count - 1, MOST_GROWTHS)
        self.failure = Failure(reason, count, call + wait)

    def hear(self, bucket: int, value: float, expected: float, variance: float) -> bool:
        """Compare a sample with what was expected of it; True when the beliefs about other sizes changed too.

        One surprise may be an outlier. A tool that seems faster is suspected, so that it is tried again soon; several
        surprises of one sign in a row are a drift, and so are many calls most of which are a little off the same way.
        """
        deviation = value - expected
        noise = self.curve.noise
        creeps = False
        self.recent = [*self.recent[1 - CREEP_CALLS :], (bucket, deviation)]
        if len(self.recent) < CREEP_CALLS:
            self.curve.hear(deviation)
        else:
            creep = lower_median([deviation for _, deviation in self.recent])
            self.curve.hear(deviation - creep)  # a change of speed is not noise
            least = max(CREEP_LEAST, CREEP_DEVIATIONS * noise * math.sqrt(MEDIAN_VARIANCE / CREEP_CALLS))
            if abs(creep) > least:
                off = sorted(deviation if creep > 0 else -deviation for _, deviation in self.recent)
                creeps = off[CREEP_CALLS // 4] > CREEP_AGREED
            if creeps and (creep < 0 or self.trial.proved or self.trial.unanswered):
                self._drift(self.recent)
                return True
            if creeps:
                self.trial.suspect(creep)
        limit = max(DRIFT_LEAST, DRIFT_DEVIATIONS * math.sqrt(noise * noise + variance))
        self.rate += RATE_STEP * ((abs(deviation) > limit) - self.rate)
        if abs(deviation) <= limit:
            changed = self.suspicion > 0
            self.suspicion, self.backoff = 0.0, 1
            self.surprises.clear()
            if not creeps:
                self.trial.end()
                self.excused = 0
            return changed
        if self.surprises and (self.surprises[-1][1] > 0) != (deviation > 0):
            self.surprises.clear()
        self.surprises.append((bucket, deviation))
        if deviation > 0 and len(self.surprises) >= SUSPICIOUS_CALLS:
            self.trial.suspect(lower_median([deviation for _, deviation in self.surprises]))
        if len(self.surprises) >= self._needed():
            self._drift(self.surprises)
            return True
        if deviation > 0:
            self.backoff = min(self.backoff * 4, MOST_BACKOFF)
            return False
        self.looks = 0
        self.suspicion = min(self.suspicion - deviation / 2, MOST_SUSPICION)
        return True

    def excuse(self) -> None:
        """It was the machine: what the tool took meanwhile says nothing of it."""
        for bucket, _ in self.surprises:
            self.curve.cell(bucket).drop_last()
        self.surprises, self.recent = [], []
        self.trial.end()
        self.excused += 1

    def move(self, by: float, but: int = -1) -> None:
        """The whole machine changed its speed, and the tool with it; what is known at bucket ``but`` is of now."""
        for bucket, cell in self.curve.cells():
            if len(cell) and bucket != but:
                cell.shift(by, max(DRIFT_DOUBT, cell.doubt))
        self.shift += by
        self.excused = 0

    def _needed(self) -> float:
        """How many surprises in a row are a change of speed."""
        if self.trial.undecided:
            return math.inf
        middle = lower_median([deviation for _, deviation in self.surprises])
        spread = lower_median([abs(deviation - middle) for _, deviation in self.surprises])
        return max(DRIFT_CALLS, DRIFT_LOG_CHANCE / math.log(self.rate)) * (2 if spread > DRIFT_SPREAD else 1)

    def _drift(self, signs: list[tuple[int, float]]) -> None:
        """The tool's speed changed: keep the samples that show it, move the others by as much and doubt them."""
        by = lower_median([deviation for _, deviation in signs])
        self.shift += by
        buckets = [bucket for bucket, _ in signs]
        near = range(min(buckets) - BAND, max(buckets) + BAND + 1)
        for bucket, cell in self.curve.cells():
            if bucket in buckets:
                cell.keep_last(buckets.count(bucket))
            elif len(cell):
                share = DRIFT_DOUBT_NEAR if bucket in near else DRIFT_DOUBT_FAR
                cell.shift(by, max(DRIFT_DOUBT, abs(by) * share))
        self.surprises, self.recent = [], []
        self.suspicion, self.backoff = 0.0, 1
        self.trial.end()
