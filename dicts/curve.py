"""What is known of a tool at one size from what it took at the sizes around it. Pure arithmetic on logarithms.

The time of a tool over the size is a smooth curve, so its samples in one bucket say something about the next: less, the
further away. The model is a random walk over the buckets, solved exactly from either side (Kalman, 1960)
after the common trend is taken off: the shape latency + size / bandwidth, and the local slope that is left.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from fastio.dicts.context import LAST_BUCKET, bucket_nbytes
from fastio.dicts.samples import NORMAL_MAD, Samples, lower_median

REACH = 16  # buckets: four octaves either way
NEIGHBOURS = 8  # cells either way
WALK_VARIANCE = 0.045**2  # of the logarithm of a tool's relative time, from one bucket to the next
SLOPE_RIDGE = 400.0  # holds the slope at nought until samples spread over sizes say otherwise
USUAL_NOISE = 0.12
LEAST_NOISE, MOST_NOISE = 0.02, 0.6
NOISE_STEP = 0.06
FIRST_NOISE = 0.35  # deviation of a first call's time from that of other first calls
FIRST_DOUBT = 1.0  # and from that of later calls
SURPRISED = 2.0

LATENCY_NBYTES = 1 << 20  # latency times bandwidth of a usual disk


def shape(nbytes: int) -> float:
    """What the logarithm of any tool's time grows with: latency + size / bandwidth, in units of its own."""
    return math.log(max(nbytes, 0) + LATENCY_NBYTES)


SHAPE = tuple(shape(bucket_nbytes(bucket)) for bucket in range(LAST_BUCKET + 1))

Point = tuple[int, float, float]
"""Distance in buckets, logarithm of seconds less the shape, variance."""


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
                    found.append((distance, cell.median - SHAPE[key], cell.variance(noise)))
                elif cell.firsts:
                    deviation = FIRST_NOISE if firsts_count else FIRST_DOUBT
                    value = lower_median(cell.firsts) - SHAPE[key]
                    firsts.append((distance, value, deviation * deviation / len(cell.firsts)))
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
        for distance, value, variance in points:
            above += (distance - middle) * (value - level) / variance
            below += (distance - middle) ** 2 / variance
    return above / below


def at_zero(points: Sequence[Point], slope: float) -> tuple[float, float]:
    """Mean and variance of the curve at distance zero: the walk from the left and that from the right, together."""
    middle = sum(point[0] <= 0 for point in points)
    left = _walk(points[:middle], slope)
    right = _walk(points[middle:][::-1], slope)
    if left is None or right is None:
        return left or right or (0.0, math.inf)
    weight_left, weight_right = 1 / left[1], 1 / right[1]
    weight = weight_left + weight_right
    return (left[0] * weight_left + right[0] * weight_right) / weight, 1 / weight


def _walk(points: Sequence[Point], slope: float) -> tuple[float, float] | None:
    """Filter from the furthest point to distance zero. A point far from what is expected loses weight (Huber, 1964)."""
    if not points:
        return None
    at, mean, variance = points[0]
    mean -= slope * at
    for distance, value, noise in points[1:]:
        variance += WALK_VARIANCE * abs(distance - at)
        at = distance
        innovation = value - slope * distance - mean
        total = variance + noise
        if innovation * innovation > SURPRISED * SURPRISED * total:
            total *= innovation * innovation / (SURPRISED * SURPRISED * total)
        gain = variance / total
        mean += gain * innovation
        variance *= 1 - gain
    return mean, variance + WALK_VARIANCE * abs(at)
