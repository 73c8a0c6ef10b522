"""Tells a tool that became slower or faster from noise: Page's two-sided CUSUM (Biometrika 41, 1954) of one tool."""

from __future__ import annotations

import math
from dataclasses import dataclass

ALLOWANCE = 1.25  # standard deviations: what a residual may be off without counting
MOST_SUSPICION = 1.2  # logarithm: what takes longer is rather a stall of the machine
LIMIT = 5.0  # sum of the excess at which a change is certain: three calls that are 3 deviations off
SUSPECT = 1.7  # and at which it is suspected: one such call
CLIP = 3.0  # deviations that a call counts as at most: it may have met a stall of the machine
NOISE, LEAST_NOISE, MOST_NOISE = 0.12, 0.03, 0.25  # standard deviation of the logarithm of one tool's times
NOISE_STEP = 0.05
TAILS = 1.6  # times have heavier tails than the normal distribution: residuals are measured in that much more noise
_NORMAL_MEDIAN = 0.675  # of the absolute value, in standard deviations


@dataclass(slots=True)
class ChangeDetector:
    """Watches the residuals of one tool: logarithms of its time over the expected one.

    ``suspicion`` is the least residual since a slowdown is suspected, else 0. ``noise`` is the standard deviation of
    the residuals, learned by their median. ``slowed``: a slowdown was found, and the tool was not seen as fast as
    before it since.
    """

    noise: float = NOISE
    suspicion: float = 0.0
    slowed: bool = False
    _up: float = 0.0
    _down: float = 0.0

    def detect(self, residual: float, variance: float) -> bool:
        """Add a residual whose variance is noise and uncertainty together; return whether a change is certain."""
        deviations = residual / math.sqrt(variance + (TAILS**2 - 1) * self.noise**2)
        if abs(deviations) < CLIP:
            factor = 1 + NOISE_STEP if abs(deviations) > _NORMAL_MEDIAN else 1 / (1 + NOISE_STEP)
            self.noise = min(max(self.noise * factor, LEAST_NOISE), MOST_NOISE)
        excess = max(min(deviations, CLIP), -CLIP)
        self._up = max(0.0, self._up + excess - ALLOWANCE)
        if residual < self.suspicion / 2:  # nearer to the old speed than to the suspected one
            self._up = 0.0
        self._down = max(0.0, self._down - excess - ALLOWANCE)
        if self._up >= LIMIT or self._down >= (SUSPECT if self.slowed else LIMIT):
            self._up = self._down = 0.0
            return True
        self.suspicion = min(residual, self.suspicion or MOST_SUSPICION) if self._up >= SUSPECT else 0.0
        return False

    @property
    def penalty(self) -> float:
        """The logarithm by which the expected time grows with the suspicion: its chance times what it would cost."""
        return math.log1p(min(1.0, self._up / LIMIT) * math.expm1(self.suspicion)) if self.suspicion else 0.0
