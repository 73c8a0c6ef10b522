"""Tells a change of a tool's speed from noise by Page's two-sided CUSUM (Biometrika 41, 1954)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastio.dicts import constants


@dataclass(slots=True)
class ChangeDetector:
    """The change test of one tool, over its residuals: logarithms of a time over the expected one."""

    _up: float = 0.0
    _down: float = 0.0

    def detect(self, residual: float, variance: float) -> bool:
        """Add a residual; return whether a change is certain. ``variance``: of the expected value.

        Slow calls have many causes, fast ones a single one: only the former are clipped.
        """
        deviations = residual / math.sqrt(variance + constants.TEST_NOISE**2)
        excess = min(deviations, constants.CLIP)
        self._up = max(0.0, self._up + excess - constants.ALLOWANCE)
        self._down = max(0.0, self._down - excess - constants.ALLOWANCE)
        if max(self._up, self._down) < constants.LIMIT:
            return False
        self._up = self._down = 0.0
        return True
