"""What is known of a tool at one size from what it took at the sizes around it. Pure arithmetic on logarithms.

The time of a tool over the size is a smooth curve, so its samples in one bucket say something about the next: less, the
further away. The model is a random walk over the buckets, solved from either side (Kalman, 1960) after the common trend
is taken off: the shape latency + size / bandwidth, and the local slope that is left. What one tool takes over another
walks more slowly (in two recorded traces 0.04 and 0.07 a bucket where a tool alone walks 0.08), so all but the tool
that is known best are compared with that one's curve. What that cannot explain is an outlier, or the curve has a step
or a bump there. The belief is the mixture of them all (Harrison and Stevens, 1976): so a bucket's own samples win once
several agree, and where one alone speaks against the sizes around, doubt is left.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence

from fastio.dicts.context import LAST_BUCKET, bucket_nbytes
from fastio.dicts.samples import NORMAL_MAD, Samples, lower_median

REACH = 16  # buckets: four octaves either way
NEIGHBOURS = 8  # cells either way
WALK_VARIANCE = 0.075**2  # of the logarithm of a tool's time less the shape, from one bucket to the next
BESIDE_VARIANCE = 0.04**2  # and of its time over that of the tool known best
SLOPE_RIDGE = 400.0  # holds the slope at nought until samples spread over sizes say otherwise
USUAL_NOISE = 0.12
LEAST_NOISE, MOST_NOISE = 0.02, 0.6
NOISE_STEP = 0.06
FIRST_NOISE = 0.35  # deviation of a first call's time from that of other first calls
FIRST_DOUBT = 1.0  # and from that of later calls
SURPRISED = 2.0  # deviations: further off than this it may be something else than noise
SLOW_OUTLIER, FAST_OUTLIER = 0.05, 0.002  # chance that a sample is one; of a median, that half of its samples are
STEP, BUMP = 0.002, 0.005  # chance that the curve is at another level from a bucket on, or in that bucket alone
UNUSUAL_VARIANCE = 1.0  # of an outlier, a step or a bump

LATENCY_NBYTES = 1 << 20  # latency times bandwidth of a usual disk


def shape(nbytes: int) -> float:
    """What the logarithm of any tool's time grows with: latency + size / bandwidth, in units of its own."""
    return math.log(max(nbytes, 0) + LATENCY_NBYTES)


SHAPE = tuple(shape(bucket_nbytes(bucket)) for bucket in range(LAST_BUCKET + 1))

Point = tuple[int, float, float, int]
"""Distance in buckets, logarithm of seconds less the shape, variance, number of samples."""


class Curve:
    """Everything measured of one tool in one context, by bucket."""

    __slots__ = ("buckets", "cells", "mad", "measured")

    def __init__(self) -> None:
        self.cells: dict[int, Samples] = {}
        self.buckets: list[int] = []
        self.mad = USUAL_NOISE / NORMAL_MAD
        self.measured = False  # whether any cell has samples that are not of first calls

    @property
    def noise(self) -> float:
        """The usual deviation of a sample from what was expected, as a standard deviation."""
        return NORMAL_MAD * self.mad

    def cell(self, bucket: int) -> Samples:
        """The samples of a bucket, made empty where there are none."""
        cell = self.cells.get(bucket)
        if cell is None:
            cell = self.cells[bucket] = Samples()
            insort(self.buckets, bucket)
        return cell

    def add(self, bucket: int, value: float) -> None:
        """Take a sample."""
        self.cell(bucket).add(value)
        self.measured = True

    def put(self, bucket: int, cell: Samples) -> None:
        """Set the samples of a bucket."""
        self.cell(bucket)
        self.cells[bucket] = cell
        self.measured = self.measured or bool(cell.values)

    def hear(self, deviation: float) -> None:
        """Learn the usual noise: a running median of absolute deviations, which outliers move no more than others."""
        step = 1 + NOISE_STEP if abs(deviation) > self.mad else 1 / (1 + NOISE_STEP)
        self.mad = min(max(self.mad * step, LEAST_NOISE), MOST_NOISE)

    def count(self, bucket: int) -> tuple[int, int]:
        """The number of samples in a bucket, and of those within reach of it."""
        here = self.cells.get(bucket)
        nearby = sum(len(cell.values) for key, cell in self.cells.items() if abs(key - bucket) <= REACH)
        return len(here.values) if here else 0, nearby

    def points(self, bucket: int, firsts_count: bool) -> list[Point]:
        """The samples near a bucket, by distance. Those of first calls only where there are no others.

        ``firsts_count`` says that no tool has others, so that first calls are compared with first calls.
        """
        middle = bisect_left(self.buckets, bucket)
        noise = self.noise
        found: list[Point] = []
        firsts: list[Point] = []
        for key in self.buckets[max(0, middle - NEIGHBOURS) : middle + NEIGHBOURS + 1]:
            distance = key - bucket
            if -REACH <= distance <= REACH:
                cell = self.cells[key]
                if cell.values:
                    found.append((distance, cell.median - SHAPE[key], cell.variance(noise), len(cell.values)))
                elif cell.firsts:
                    deviation = FIRST_NOISE if firsts_count else FIRST_DOUBT
                    value = lower_median(cell.firsts) - SHAPE[key]
                    firsts.append((distance, value, deviation * deviation / len(cell.firsts), 1))
        return found or firsts


def common_slope(curves: Iterable[Sequence[Point]]) -> float:
    """The slope per bucket that all tools have in common once the shape is taken off: analysis of covariance."""
    above, below = 0.0, SLOPE_RIDGE
    for points in curves:
        if len(points) < 2:
            continue
        weight = sum(1 / p[2] for p in points)
        middle = sum(p[0] / p[2] for p in points) / weight
        level = sum(p[1] / p[2] for p in points) / weight
        for distance, value, variance, _ in points:
            above += (distance - middle) * (value - level) / variance
            below += (distance - middle) ** 2 / variance
    return above / below


def at_zero(points: Sequence[Point], slope: float, per_bucket: float = WALK_VARIANCE) -> tuple[float, float]:
    """Mean and variance of the curve at distance zero: the walks from the left and the right, then its own point.

    ``per_bucket`` is the walk's variance from one bucket to the next.
    """
    left = _walk([point for point in points if point[0] < 0], slope, per_bucket)
    right = _walk([point for point in reversed(points) if point[0] > 0], slope, per_bucket)
    around = _between(left, right) if left and right else left or right
    own = next((point for point in points if point[0] == 0), None)
    if own is None:
        return around or (0.0, math.inf)
    _, value, noise, samples = own
    return _heard(*around, value, noise, samples, 0.0, STEP + BUMP) if around else (value, noise)


def smooth(points: Sequence[Point], slope: float) -> list[tuple[int, float, float]]:
    """Distance, mean and variance of the curve at each of its points, by the point and all on either side of it."""
    after = list(_filtered(points, slope))
    before = list(_filtered(points[::-1], slope))[::-1]
    result = []
    for index, ((distance, *_), (_, mean, variance)) in enumerate(zip(points, after, strict=True)):
        if index + 1 < len(points):
            following, ahead, unsure = before[index + 1]
            unsure += WALK_VARIANCE * (following - distance)
            mean, variance = _between((mean, variance), (ahead, unsure))
        result.append((distance, mean + slope * distance, variance))
    return result


def beside(points: Sequence[Point], leader: Sequence[tuple[int, float, float]], here: float) -> list[Point]:
    """The points less what the ``leader`` curve (of :func:`smooth`) has there, plus what it has at zero: ``here``."""
    result = []
    for distance, value, noise, samples in points:
        if distance:
            level, variance = _level(leader, distance)
            value, noise = value - level + here, noise + variance
        result.append((distance, value, noise, samples))
    return result


def _level(curve: Sequence[tuple[int, float, float]], at: int) -> tuple[float, float]:
    """Mean and variance of a smoothed curve at a distance, between its points by interpolation."""
    after = bisect_left(curve, (at,))
    low, high = curve[max(0, after - 1)], curve[min(after, len(curve) - 1)]
    if low[0] < at < high[0]:
        share = (at - low[0]) / (high[0] - low[0])
        gap = min(at - low[0], high[0] - at)
        return low[1] + share * (high[1] - low[1]), max(low[2], high[2]) + WALK_VARIANCE * gap
    nearest = min(low, high, key=lambda point: abs(point[0] - at))
    return nearest[1], nearest[2] + WALK_VARIANCE * abs(nearest[0] - at)


def _filtered(points: Sequence[Point], slope: float) -> Iterator[tuple[int, float, float]]:
    """Distance, mean and variance after each point of a walk that began at the first of them."""
    at, mean, variance = 0, 0.0, math.inf
    for distance, value, noise, samples in points:
        value -= slope * distance
        if variance == math.inf:
            mean, variance = value, noise
        else:
            variance += WALK_VARIANCE * abs(distance - at)
            mean, variance = _heard(mean, variance, value, noise, samples, BUMP, STEP)
        at = distance
        yield distance, mean, variance


def _walk(points: Sequence[Point], slope: float, per_bucket: float) -> tuple[float, float] | None:
    """Filter from the furthest point to distance zero."""
    if not points:
        return None
    at, mean, variance, _ = points[0]
    mean -= slope * at
    for distance, value, noise, samples in points[1:]:
        variance += per_bucket * abs(distance - at)
        at = distance
        # Of a bump further on nothing follows for what comes after it, as of an outlier.
        mean, variance = _heard(mean, variance, value - slope * distance, noise, samples, BUMP, STEP)
    return mean, variance + per_bucket * abs(at)


def _between(left: tuple[float, float], right: tuple[float, float]) -> tuple[float, float]:
    """What two walks say together. Where they contradict each other there is a step, on which side is not known."""
    total = left[1] + right[1]
    share, gap = right[1] / total, left[0] - right[0]
    step = max(0.0, gap * gap - SURPRISED * SURPRISED * total)
    return right[0] + share * gap, left[1] * right[1] / total + share * (1 - share) * step


def _heard(
    mean: float, variance: float, value: float, noise: float, samples: int, bump: float, step: float
) -> tuple[float, float]:
    """The belief after a point: the moments of its explanations, which are noise, an outlier (or a bump) and a step."""
    off, total = value - mean, variance + noise
    gain = variance / total
    if off * off <= SURPRISED * SURPRISED * total:
        return mean + gain * off, variance * (1 - gain)
    wide = total + UNUSUAL_VARIANCE
    noisy = math.exp(off * off * (1 / wide - 1 / total) / 2) * math.sqrt(wide / total)  # over the unusual's density
    outlier = (SLOW_OUTLIER if off > 0 else FAST_OUTLIER) ** ((samples + 1) // 2)
    odds = (noisy, outlier + bump, step)
    gains = (gain, variance / wide, (variance + UNUSUAL_VARIANCE) / wide)
    variances = (variance, variance, variance + UNUSUAL_VARIANCE)
    every = sum(odds)
    new = mean + off * sum(chance * gain for chance, gain in zip(odds, gains, strict=True)) / every
    spread = sum(
        chance * (before * (1 - gain) + (mean + gain * off - new) ** 2)
        for chance, gain, before in zip(odds, gains, variances, strict=True)
    )
    return new, spread / every
