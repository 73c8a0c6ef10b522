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

from fastio.dicts import constants
from fastio.dicts.priors import Prior

_SPEED, _FIRST = -1, -2  # terms of a tool beside its knots, or of all tools, whose name is ""
_LEVEL = ("", _SPEED)
_Key = tuple[str, int]
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
        weights = {(tool, _SPEED): 1.0} | {(tool, knot): weight for knot, weight in _knots(tool, bucket)}
        known = ((self._terms[key], weight) for key, weight in weights.items() if key in self._terms)
        return sum(float(self._mean[term]) * weight for term, weight in known)

    def speed(self, tool: str) -> float:
        """The logarithm of the tool's present time over its usual time."""
        return float(self._mean[self._terms[tool, _SPEED]])

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
            # The odds of a stall, which adds an exponentially distributed time.
            odds = math.log(constants.STALLS / constants.STALL) - step / constants.STALL
            odds -= math.log((1 - constants.STALLS) / math.sqrt(math.tau * variance)) - 0.5 * step**2 / variance
            weight = 1 / (1 + math.exp(min(odds, 700.0)))
        gain = seen.covariance / variance
        self._mean += gain * (step * weight)
        self._covariance -= weight * np.outer(gain, seen.covariance - (1 - weight) * step**2 * gain)
        return weight * step * seen.variance / variance

    def bend(self, tool: str, bucket: int, common: bool) -> None:
        """Let a tool's curve move at a size; with ``common``, the curve of all tools too."""
        for knot, _ in _knots(tool, bucket):
            self._widen((tool, knot), constants.UNLISTED_CURVE)
        for knot, _ in _knots("", bucket) if common else ():
            self._widen(("", knot), constants.BENT)

    def change(self, seen: Prediction, residual: float, noise: float, level: float) -> None:
        """As :meth:`update`, after a change of the tool's or the machine's speed: both may move far."""
        self._widen(_LEVEL, level)
        self._widen((seen.tool, _SPEED), constants.CHANGED_SPEED)
        for key in [key for key in self._terms if key[0] == seen.tool and key[1] >= 0]:
            self._widen(key, constants.CHANGED_CURVE)
        self.update(self._seen(seen.tool, seen.terms, seen.weights, residual), noise, stalls=False)

    def walk(self, tools: Iterable[str], calls: int) -> None:
        """Account for so many calls since the last step: the prediction step of the Kalman filter."""
        self._widen(_LEVEL, constants.LEVEL_STEP * math.sqrt(calls))
        for tool in tools:
            self._widen((tool, _SPEED), constants.SPEED_STEP * math.sqrt(calls))

    def renew(self, tools: Iterable[str]) -> None:
        """Add uncertainty to the speeds of these tools."""
        for tool in tools:
            self._widen((tool, _SPEED), constants.RENEWED)

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
        speed = constants.UNLISTED_SPEED if doubt is None else constants.SPEED
        row = {self._term(_LEVEL, constants.LEVEL): 1.0, self._term((tool, _SPEED), speed): 1.0}
        row |= {self._knot(one, knot): weight for one in ("", tool) for knot, weight in _knots(one, bucket)}
        if first:
            row[self._term(("", _FIRST), constants.FIRST, constants.FIRST_MEAN)] = 1.0
            row[self._term((tool, _FIRST), constants.FIRST_OWN)] = 1.0
        return row

    def _knot(self, tool: str, knot: int) -> int:
        """A knot's term. Its deviation is the same, whichever bucket needs it first."""
        doubt = self.prior.at(knot * constants.KNOT, tool)[1] if tool else constants.COMMON_CURVE
        return self._term((tool, knot), constants.UNLISTED_CURVE if doubt is None else doubt)

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


def _knots(tool: str, bucket: int) -> list[tuple[int, float]]:
    """The one or two knots of a tool's curve, or the common one, around a bucket: weights of linear interpolation."""
    every = constants.KNOT if tool else constants.COMMON_KNOT
    knot, beyond = divmod(bucket, every)
    share = beyond / every
    return [(knot, 1 - share), (knot + 1, share)] if share else [(knot, 1.0)]
