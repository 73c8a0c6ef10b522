"""What each tool is believed to take at one size: its own samples, those at the sizes around, and the prior. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fastio.dicts.curve import BESIDE_VARIANCE, SHAPE, Point, at_zero, beside, common_slope, smooth
from fastio.dicts.priors import Rule
from fastio.dicts.record import Record

MEASURED, NEARBY, FIRST_CALL, PRIOR, UNKNOWN = "measured", "nearby sizes", "first calls", "prior", "unknown"


SHIFT_DOUBT = 0.3  # of a change of speed, at sizes where it was not measured


class Estimate(NamedTuple):
    """What a tool is believed to take at one bucket.

    ``mean`` and ``deviation`` are those of the logarithm of seconds, less the common shape. ``source`` says what
    the belief rests on; ``samples`` were taken in the bucket itself, ``nearby`` within reach of it. ``listed``: the
    prior says something of the tool, namely ``prior``, the logarithm of its time relative to others.
    ``looks`` is how often it was looked at again in vain.
    """

    tool: str
    mean: float
    deviation: float
    source: str
    samples: int
    nearby: int
    listed: bool = False
    prior: float = 0.0
    looks: int = 0

    @property
    def known(self) -> bool:
        """Whether the tool was measured at this size or near it."""
        return self.source in (MEASURED, NEARBY)

    @property
    def only_listed(self) -> bool:
        """Whether the prior says something of the tool, and measurement no more than a first call."""
        return self.listed and not self.known

    def seconds(self, bucket: int) -> float:
        """The time expected at the bucket's own size."""
        return math.exp(min(self.mean + SHAPE[bucket], 100.0))


def estimates(records: Mapping[str, Record], rule: Rule, bucket: int, tools: Sequence[str]) -> list[Estimate]:
    """The estimates of all tools, the fastest first; equal ones stay in the order given.

    The prior knows only ratios, so its level is fitted to the tools that were measured; where it contradicts them, it
    loses weight for all (empirical Bayes).
    """
    curves = {tool: records[tool].curve for tool in tools if tool in records}
    only_firsts = not any(curve.measured for curve in curves.values())
    points = {tool: found for tool, curve in curves.items() if (found := curve.points(bucket, only_firsts))}
    here = _here(points)
    prior = {tool: _prior(rule, bucket, tool, records.get(tool)) for tool in tools}
    level, level_variance, scale = _fit(here, prior)
    result = []
    for tool in tools:
        mean, variance = prior[tool][0] + level, (prior[tool][1] + level_variance) * scale
        samples = nearby = looks = 0
        listed = rule.lists(tool)
        source = PRIOR if listed else UNKNOWN
        suspicion = 0.0
        if tool in here:
            own_mean, own_variance = here[tool]
            weight, prior_weight = 1 / own_variance, 1 / variance
            mean = (own_mean * weight + mean * prior_weight) / (weight + prior_weight)
            variance = 1 / (weight + prior_weight)
            samples, nearby = curves[tool].count(bucket)
            source = MEASURED if samples else NEARBY if nearby else FIRST_CALL
            suspicion, looks = records[tool].suspicion, records[tool].looks
        spread = math.sqrt(variance) + suspicion
        result.append(Estimate(tool, mean, spread, source, samples, nearby, listed, prior[tool][0], looks))
    result.sort(key=lambda estimate: estimate.mean)
    return result


def _here(points: Mapping[str, Sequence[Point]]) -> dict[str, tuple[float, float]]:
    """Mean and variance of each tool at distance zero: the one known best by itself, the others beside it."""
    if not points:
        return {}
    slope = common_slope(points.values())
    leader = max(points, key=lambda tool: sum(1 / variance for _, _, variance, _ in points[tool]))
    here = {leader: at_zero(points[leader], slope)}
    curve = smooth(points[leader], slope) if len(points) > 1 else []
    for tool, found in points.items():
        if tool != leader:
            here[tool] = at_zero(beside(found, curve, here[leader][0]), 0.0, BESIDE_VARIANCE)
    return here


def _prior(rule: Rule, bucket: int, tool: str, record: Record | None) -> tuple[float, float]:
    """What the rule says of a tool, moved by as much as the tool's speed changed since."""
    mean, variance = rule.at(bucket, tool)
    shift = record.shift if record is not None else 0.0
    return mean + shift, variance + (SHIFT_DOUBT * shift) ** 2


def _fit(
    here: Mapping[str, tuple[float, float]], prior: Mapping[str, tuple[float, float]]
) -> tuple[float, float, float]:
    """Level of the prior, the level's variance, and how much wider the prior must be to agree with measurement."""
    if not here:
        return 0.0, 0.0, 1.0
    weights = {tool: 1 / (variance + prior[tool][1]) for tool, (_, variance) in here.items()}
    total = sum(weights.values())
    level = sum(weights[tool] * (mean - prior[tool][0]) for tool, (mean, _) in here.items()) / total
    scale = 1.0
    if len(here) > 1:
        misfit = sum(weights[tool] * (mean - prior[tool][0] - level) ** 2 for tool, (mean, _) in here.items())
        scale = max(1.0, misfit / (len(here) - 1))
    return level, 1 / total, scale


def chance_of_best(ranked: Sequence[Estimate]) -> float:
    """How sure it is that the first is the fastest, 0 to 1: its chance against each other tool, multiplied."""
    best, chance = ranked[0], 1.0
    for other in ranked[1:]:
        deviation = math.hypot(best.deviation, other.deviation)
        chance *= 0.5 * (1 + math.erf((other.mean - best.mean) / (deviation * math.sqrt(2))))
    return chance
