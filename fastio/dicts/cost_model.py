"""The expected time of each tool at each size: a linear Gaussian model of log(seconds), learned by a Kalman filter.

::

    log(seconds) = shape(size) + prior(tool, size)             known from other machines
                 + level + curve(size)                         of all tools: the machine
                 + speed(tool) + curve(tool, size)             of one tool
                 + first + first(tool)                         only in a tool's first call of a process
                 + noise

Curves are piecewise linear between knots. Level and speeds are random walks. The terms have a full covariance, so one
call also moves the expected times of the other tools, as far as its residual may be the machine's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from fastio.dicts.priors import Prior

LEVEL, COMMON_KNOT, COMMON_CURVE = 0.7, 4, 0.4  # standard deviations of the terms; buckets between two knots
SPEED, TOOL_KNOT = 0.15, 8
UNLISTED_SPEED, UNLISTED_CURVE = 0.5, 0.6  # of a tool without a prior
FIRST_MEAN, FIRST, FIRST_OWN = 0.3, 0.8, 0.3  # logarithm that a first call adds; its deviations, of all tools and one
LEVEL_STEP, SPEED_STEP = 0.02, 0.006  # deviations of the random walks' steps, for each call
CHANGED_LEVEL, CHANGED_SPEED, CHANGED_CURVE = 0.6, 0.9, 0.3  # deviations added when a speed has changed
SPED_UP_LEVEL = 2.0  # the level's, when a tool is faster than it ever was: a busy machine is the likely reason
BENT = 2.0  # deviation added to the common curve at a size whose first time is far from the expected one
RENEWED = 0.5  # deviation added to all speeds by a renewal
STALLS, STALL = 0.05, 0.7  # share of calls that meet a stall of the machine; mean of the logarithm that it adds

_LEVEL, _FIRST = ("", 0, 0), ("", -1, 0)
_Key = tuple[str, int, int]
_Array = Any


class Place(NamedTuple):
    """Some tools at one bucket: the prior's means (tools), the terms of the model, and their weights (tools, terms)."""

    priors: _Array
    terms: _Array
    weights: _Array


class Prediction(NamedTuple):
    """A measured time compared with the expected one.

    ``residual``: the logarithm of their ratio. ``variance``: that of the expected value, without noise.
    ``covariance``: of the expected value with each term of the model.
    """

    tool: str
    terms: _Array
    weights: _Array
    residual: float
    variance: float
    covariance: _Array


class CostModel:
    """The model of one context. Buckets are those of :mod:`fastio.dicts.sizes`; values are log(seconds) less shape."""

    def __init__(self, prior: Prior) -> None:
        self.prior = prior
        self._terms: dict[_Key, int] = {}
        self._mean: _Array = np.zeros(0)
        self._covariance: _Array = np.zeros((0, 0))
        self._places: dict[tuple[tuple[str, ...], int, bool], Place] = {}
        self._begun = False

    def expect(self, tools: tuple[str, ...], bucket: int, first: bool = False) -> tuple[_Array, _Array]:
        """The expected values of tools, shape (tools,), and their covariance. ``first``: as first calls."""
        place = self._place(tools, bucket, first)
        covariance = place.weights @ self._covariance[np.ix_(place.terms, place.terms)] @ place.weights.T
        return place.priors + place.weights @ self._mean[place.terms], covariance

    def excess(self, tool: str, bucket: int) -> float:
        """The logarithm of a tool's expected time at a bucket over what the prior has it take, beside other tools."""
        knot, beyond = divmod(bucket, TOOL_KNOT)
        share = beyond / TOOL_KNOT
        weights = {(tool, 0, 0): 1.0, (tool, TOOL_KNOT, knot): 1 - share, (tool, TOOL_KNOT, knot + 1): share}
        return sum(
            float(self._mean[self._terms[key]]) * weight for key, weight in weights.items() if key in self._terms
        )

    def speed(self, tool: str) -> float:
        """The logarithm of the tool's present time over its usual time."""
        return float(self._mean[self._terms[tool, 0, 0]])

    def predict(self, tool: str, bucket: int, value: float, first: bool = False) -> Prediction:
        """Compare a measured value with the expected one."""
        (prior,), terms, (weights,) = self._place((tool,), bucket, first)
        if not self._begun:
            self._begun = True
            self._mean[self._terms[_LEVEL]] += value - prior - self._mean[terms] @ weights
        residual = float(value - prior - self._mean[terms] @ weights)
        return self._seen(tool, terms, weights, residual)

    def update(self, seen: Prediction, noise: float, stalls: bool = True) -> float:
        """Learn a measured value whose noise has this variance: the update step of the Kalman filter.

        A call may have met a stall of the machine, which says nothing about the tool. With ``stalls``, the update is
        weighted by the chance that it met none (probabilistic data association: Bar-Shalom and Tse, 1975). Return by
        how much the expected value moved.
        """
        variance, weight, step = seen.variance + noise, 1.0, seen.residual
        if step > 0 and stalls:
            odds = math.log(STALLS / STALL) - step / STALL  # of a stall; the exponential distribution of what it adds
            odds -= math.log((1 - STALLS) / math.sqrt(math.tau * variance)) - 0.5 * step**2 / variance
            weight = 1 / (1 + math.exp(min(odds, 700.0)))
        gain = seen.covariance / variance
        self._mean += gain * (step * weight)
        self._covariance -= weight * np.outer(gain, seen.covariance - (1 - weight) * step**2 * gain)
        return weight * step * seen.variance / variance

    def bend(self, tool: str, bucket: int, common: bool) -> None:
        """Let a tool's curve move at a size; with ``common``, the curve of all tools too."""
        for index in self._knots("", bucket, COMMON_KNOT) if common else ():
            self._covariance[index, index] += BENT**2
        for index in self._knots(tool, bucket, TOOL_KNOT):
            self._covariance[index, index] += UNLISTED_CURVE**2

    def change(self, seen: Prediction, residual: float, noise: float, level: float = CHANGED_LEVEL) -> None:
        """As :meth:`update`, after a change of the tool's or the machine's speed: both may move far."""
        self._widen(_LEVEL, level)
        self._widen((seen.tool, 0, 0), CHANGED_SPEED)
        for key in [key for key in self._terms if key[0] == seen.tool and key[1] > 0]:
            self._widen(key, CHANGED_CURVE)
        self.update(self._seen(seen.tool, seen.terms, seen.weights, residual), noise, stalls=False)

    def walk(self, tools: Iterable[str], calls: int) -> None:
        """Account for so many calls since the last step: the prediction step of the Kalman filter."""
        self._widen(_LEVEL, LEVEL_STEP * math.sqrt(calls))
        for tool in tools:
            self._widen((tool, 0, 0), SPEED_STEP * math.sqrt(calls))

    def renew(self, tools: Iterable[str]) -> None:
        """Add uncertainty to the speeds of these tools."""
        for tool in tools:
            self._widen((tool, 0, 0), RENEWED)

    def forget(self, tool: str) -> None:
        """Remove the terms of one tool."""
        gone = [index for key, index in self._terms.items() if key[0] == tool]
        self._mean = np.delete(self._mean, gone)
        self._covariance = np.delete(np.delete(self._covariance, gone, 0), gone, 1)
        kept = sorted((index, key) for key, index in self._terms.items() if key[0] != tool)
        self._terms = {key: index for index, (_, key) in enumerate(kept)}
        self._places.clear()

    def _seen(self, tool: str, terms: _Array, weights: _Array, residual: float) -> Prediction:
        covariance = self._covariance[:, terms] @ weights
        return Prediction(tool, terms, weights, residual, float(weights @ covariance[terms]), covariance)

    def _place(self, tools: tuple[str, ...], bucket: int, first: bool) -> Place:
        found = self._places.get((tools, bucket, first))
        if found is None:
            priors, rows = [], []
            for tool in tools:
                mean, doubt = self.prior.at(bucket, tool)
                priors.append(mean)
                rows.append(self._row(tool, bucket, first, doubt))
            terms = sorted({term for row in rows for term in row})
            weights = np.array([[row.get(term, 0.0) for term in terms] for row in rows])
            found = self._places[tools, bucket, first] = Place(np.array(priors), np.array(terms), weights)
        return found

    def _row(self, tool: str, bucket: int, first: bool, doubt: float | None) -> dict[int, float]:
        """The terms of a tool's time at a bucket, with their weights."""
        speed = UNLISTED_SPEED if doubt is None else SPEED
        row = {self._term(_LEVEL, LEVEL): 1.0, self._term((tool, 0, 0), speed): 1.0}
        row |= self._knots("", bucket, COMMON_KNOT) | self._knots(tool, bucket, TOOL_KNOT)
        if first:
            row |= {self._term(_FIRST, FIRST, FIRST_MEAN): 1.0, self._term((tool, -1, 0), FIRST_OWN): 1.0}
        return row

    def _knots(self, tool: str, bucket: int, every: int) -> dict[int, float]:
        """The one or two knots around a bucket, weighted by linear interpolation."""
        knot, beyond = divmod(bucket, every)
        share = beyond / every
        row = {self._knot(tool, every, knot): 1 - share}
        return row | {self._knot(tool, every, knot + 1): share} if share else row

    def _knot(self, tool: str, every: int, knot: int) -> int:
        """A knot's term. Its deviation is the same, whichever bucket needs it first."""
        doubt = self.prior.at(knot * every, tool)[1] if tool else COMMON_CURVE
        return self._term((tool, every, knot), UNLISTED_CURVE if doubt is None else doubt)

    def _term(self, key: _Key, deviation: float, mean: float = 0.0) -> int:
        """The index of a term; a new term gets this mean and deviation."""
        index = self._terms.get(key)
        if index is None:
            index = self._terms[key] = len(self._mean)
            self._mean = np.append(self._mean, mean)
            self._covariance = np.pad(self._covariance, (0, 1))
            self._covariance[index, index] = deviation**2
        return index

    def _widen(self, key: _Key, deviation: float) -> None:
        index = self._terms.get(key)
        if index is not None:
            self._covariance[index, index] += deviation**2
