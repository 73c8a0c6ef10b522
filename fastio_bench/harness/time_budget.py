"""Divides a time limit among the steps of a comparison. Pure: the clock is an argument."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class TimeBudget:
    """A limit of ``seconds`` for all steps together. Time that a step leaves goes to the later ones."""

    def __init__(self, seconds: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds
        self._start = self._until = 0.0

    def begin(self, share: float) -> None:
        """Begin a step that gets this share, 0 to 1, of the remaining time."""
        self._start = self._clock()
        self._until = self._start + share * (self._end - self._start)

    def another(self, done: int) -> bool:
        """Whether another round of the step fits, judged by the mean of the ``done`` ones."""
        now = self._clock()
        return now + (now - self._start) / done <= self._until
