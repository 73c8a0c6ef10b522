"""Tells a change of a tool's speed from noise by Page's two-sided CUSUM (Biometrika 41, 1954)."""

from __future__ import annotations

import math
from dataclasses import dataclass

ALLOWANCE = 1.25  # standard deviations of a residual that are no sign of a change
MOST_SUSPICION = 1.2  # logarithm: a greater slowdown is more likely a stall of the machine
LIMIT = 5.0  # a change is certain at this sum of deviations beyond the allowance: three calls that are 3 off
SUSPECT = 1.7  # a change is suspected at this sum: one such call
CLIP = 3.0  # the most deviations that one slow call adds: it may have met a stall of the machine
NOISE, LEAST_NOISE, MOST_NOISE = 0.12, 0.03, 0.25  # standard deviation of the logarithm of one tool's times
NOISE_STEP = 0.05  # relative change of the noise by one call
TAILS = 1.6  # times have heavier tails than the normal distribution, so the test multiplies the noise
_NORMAL_MEDIAN = 0.675  # of the absolute value, in standard deviations


@dataclass(slots=True)
class ChangeDetector:
    """The change test of one tool, over its residuals: logarithms of a time over the expected one.

    ``suspicion`` is the least residual since a slowdown was suspected; 0 if none is. ``noise`` is the standard
    deviation of the residuals, tracked by their median.
    """

    noise: float = NOISE
    suspicion: float = 0.0
    _up: float = 0.0
    _down: float = 0.0

    def detect(self, residual: float, variance: float, slowed: bool) -> bool:
        """Add a residual; return whether a change is certain. ``variance``: of noise and uncertainty together.

        ``slowed``: the tool is slower than it was, or than the prior has it, so that one fast call suffices. Slow calls
        have many causes, fast ones a single one: only the former are clipped.
        """
        deviations = residual / math.sqrt(variance + (TAILS**2 - 1) * self.noise**2)
        if abs(deviations) < CLIP:
            factor = 1 + NOISE_STEP if abs(deviations) > _NORMAL_MEDIAN else 1 / (1 + NOISE_STEP)
            self.noise = min(max(self.noise * factor, LEAST_NOISE), MOST_NOISE)
        excess = min(deviations, CLIP)
        self._up = max(0.0, self._up + excess - ALLOWANCE)
        if residual < self.suspicion / 2:  # nearer to the old speed than to the suspected one
            self._up = 0.0
        self._down = max(0.0, self._down - excess - ALLOWANCE)
        if self._up >= LIMIT or self._down >= (SUSPECT if slowed else LIMIT):
            self._up = self._down = 0.0
            return True
        self.suspicion = min(residual, self.suspicion or MOST_SUSPICION) if self._up >= SUSPECT else 0.0
        return False

    @property
    def penalty(self) -> float:
        """The logarithm that a suspected slowdown adds to the expected time: its chance times its cost."""
        return math.log1p(min(1.0, self._up / LIMIT) * math.expm1(self.suspicion)) if self.suspicion else 0.0
