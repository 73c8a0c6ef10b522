"""Tells a change of a tool's speed from noise by Page's two-sided CUSUM (Biometrika 41, 1954)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fastio.dicts import constants

_NORMAL_MEDIAN = 0.675  # of the absolute value, in standard deviations


@dataclass(slots=True)
class ChangeDetector:
    """The change test of one tool, over its residuals: logarithms of a time over the expected one.

    ``suspicion`` is the least residual since a slowdown was suspected; 0 if none is. ``noise`` is the standard
    deviation of the residuals, tracked by their median.
    """

    noise: float = field(default_factory=lambda: constants.NOISE)
    suspicion: float = 0.0
    _up: float = 0.0
    _down: float = 0.0

    def detect(self, residual: float, variance: float, slowed: bool) -> bool:
        """Add a residual; return whether a change is certain. ``variance``: of noise and uncertainty together.

        ``slowed``: the tool is slower than it was, or than the prior has it, so that one fast call suffices. Slow calls
        have many causes, fast ones a single one: only the former are clipped.
        """
        deviations = residual / math.sqrt(variance + (constants.TAILS**2 - 1) * self.noise**2)
        if abs(deviations) < constants.CLIP:
            factor = 1 + constants.NOISE_STEP if abs(deviations) > _NORMAL_MEDIAN else 1 / (1 + constants.NOISE_STEP)
            self.noise = min(max(self.noise * factor, constants.LEAST_NOISE), constants.MOST_NOISE)
        excess = min(deviations, constants.CLIP)
        self._up = max(0.0, self._up + excess - constants.ALLOWANCE)
        if residual < self.suspicion / 2:  # nearer to the old speed than to the suspected one
            self._up = 0.0
        self._down = max(0.0, self._down - excess - constants.ALLOWANCE)
        if self._up >= constants.LIMIT or self._down >= (constants.SUSPECT if slowed else constants.LIMIT):
            self._up = self._down = 0.0
            return True
        is_suspect = self._up >= constants.SUSPECT
        self.suspicion = min(residual, self.suspicion or constants.MOST_SUSPICION) if is_suspect else 0.0
        return False

    @property
    def penalty(self) -> float:
        """The logarithm that a suspected slowdown adds to the expected time: its chance times its cost."""
        return math.log1p(min(1.0, self._up / constants.LIMIT) * math.expm1(self.suspicion)) if self.suspicion else 0.0
