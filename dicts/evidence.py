"""What each tool is believed to take at one size: its own samples, those at the sizes around, and the prior. Pure.

The arithmetic is native (walks.hpp says what the model is), since it is done at nearly every call at mixed sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fastio._native import believe
from fastio.dicts.context import SHAPE
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
    """The estimates of all tools, the fastest first; equal ones stay in the order given."""
    known = [(tool, records.get(tool)) for tool in tools]
    prior = [_prior(rule, bucket, tool, record) for tool, record in known]
    curves = [(None if record is None else record.curve, *at) for (_, record), at in zip(known, prior, strict=True)]
    result = []
    for (tool, record), at, believed in zip(known, prior, believe(curves, bucket), strict=True):
        mean, deviation, heard, samples, nearby = believed
        listed = rule.lists(tool)
        if record is None or not heard:
            result.append(Estimate(tool, mean, deviation, PRIOR if listed else UNKNOWN, 0, 0, listed, at[0]))
            continue
        source = MEASURED if samples else NEARBY if nearby else FIRST_CALL
        deviation += record.suspicion
        result.append(Estimate(tool, mean, deviation, source, samples, nearby, listed, at[0], record.looks))
    result.sort(key=lambda estimate: estimate.mean)
    return result


def _prior(rule: Rule, bucket: int, tool: str, record: Record | None) -> tuple[float, float]:
    """What the rule says of a tool, moved by as much as the tool's speed changed since."""
    mean, variance = rule.at(bucket, tool)
    shift = record.shift if record is not None else 0.0
    return mean + shift, variance + (SHIFT_DOUBT * shift) ** 2


def chance_of_best(ranked: Sequence[Estimate]) -> float:
    """How sure it is that the first is the fastest, 0 to 1: its chance against each other tool, multiplied."""
    best, chance = ranked[0], 1.0
    for other in ranked[1:]:
        deviation = math.hypot(best.deviation, other.deviation)
        chance *= 0.5 * (1 + math.erf((other.mean - best.mean) / (deviation * math.sqrt(2))))
    return chance
