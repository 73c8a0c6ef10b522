"""Robust statistics of one tool in one bucket. Values are natural logarithms of seconds, at the bucket's own size."""

from __future__ import annotations

from collections.abc import Iterable

KEPT = 15
KEPT_FIRSTS = 3
ONE_SAMPLE = 0.2
TWO_SAMPLES = 0.1
POOLED_WEIGHT = 4
MEDIAN_VARIANCE = 1.57  # of a median over that of a mean, for normal noise: pi / 2
NORMAL_MAD = 1.48  # the standard deviation over the median absolute deviation


def lower_median(values: Iterable[float]) -> float:
    """The median, the lower of the middle two: an outlier among times is nearly always one that is too long."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


class Samples:
    """The last few times of one tool in one bucket.

    ``values`` are the recent samples, oldest first. ``firsts`` are those that were the tool's first call in its
    process: warm-up, which says something only while nothing better is known. ``doubt`` is a standard deviation
    that is added while the samples may be out of date; the next sample then replaces them. ``fresh`` and
    ``fresh_firsts`` count what is not on disk yet; ``rewritten`` says that what is on disk is out of date.
    """

    __slots__ = ("doubt", "firsts", "fresh", "fresh_firsts", "median", "rewritten", "spread", "values")

    def __init__(self, values: Iterable[float] = (), firsts: Iterable[float] = ()) -> None:
        self.values = list(values)[-KEPT:]
        self.firsts = list(firsts)[-KEPT_FIRSTS:]
        self.doubt = 0.0
        self.fresh = 0
        self.fresh_firsts = 0
        self.rewritten = False
        self._summarise()

    def add(self, value: float) -> None:
        """Take a sample; it replaces samples that are in doubt."""
        if self.doubt:
            self.values.clear()
            self.doubt = 0.0
            self.fresh = 0
        self.values.append(value)
        if len(self.values) > KEPT:
            del self.values[0]
        self.fresh = min(self.fresh + 1, KEPT)
        self._summarise()

    def add_first(self, value: float) -> None:
        """Take the time of a tool's first call in a process."""
        self.firsts = [*self.firsts, value][-KEPT_FIRSTS:]
        self.fresh_firsts = min(self.fresh_firsts + 1, KEPT_FIRSTS)

    def extend(self, values: Iterable[float], firsts: Iterable[float]) -> None:
        """Take the samples of another process."""
        self.values = [*self.values, *values][-KEPT:]
        self.firsts = [*self.firsts, *firsts][-KEPT_FIRSTS:]
        self._summarise()

    def drop_last(self) -> None:
        """Forget the last sample, unless it is the only one."""
        if len(self.values) > 1:
            del self.values[-1]
            self.fresh = max(0, self.fresh - 1)
            self._summarise()

    def keep_last(self, count: int) -> None:
        """Forget all but the last ``count`` samples: those before are of another time."""
        self.values = self.values[-count:]
        self.doubt = 0.0
        self.fresh = len(self.values)
        self.rewritten = True
        self._summarise()

    def shift(self, by: float, doubt: float) -> None:
        """Move the samples, which were taken before the tool's speed changed, and doubt them."""
        self.values = [value + by for value in self.values]
        self.doubt = doubt
        self.rewritten = self.rewritten or by != 0
        self._summarise()

    def variance(self, noise: float) -> float:
        """The variance of the median. ``noise`` is the tool's usual deviation, the guess while samples are few."""
        count = len(self.values)
        if count == 1:
            extra = ONE_SAMPLE * ONE_SAMPLE
        elif count == 2:
            extra = TWO_SAMPLES * TWO_SAMPLES
        else:
            extra = 0.0
        own = noise * noise
        if count >= POOLED_WEIGHT:
            own = (count * self.spread * self.spread + POOLED_WEIGHT * own) / (count + POOLED_WEIGHT)
        return MEDIAN_VARIANCE * own / count + extra + self.doubt * self.doubt

    def _summarise(self) -> None:
        if not self.values:
            self.median = self.spread = 0.0
            return
        self.median = median = lower_median(self.values) if len(self.values) > 1 else self.values[0]
        if len(self.values) >= POOLED_WEIGHT:
            self.spread = NORMAL_MAD * lower_median([abs(value - median) for value in self.values])
        else:
            self.spread = 0.0
