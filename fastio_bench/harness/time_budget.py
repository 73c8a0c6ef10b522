"""How many rounds there is time for, where a comparison must be over in time. Pure: the clock is an argument."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Patience:
    """So many ``seconds`` from now on for all steps; what one of them leaves, those after it have."""

    def __init__(self, seconds: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end = clock() + seconds
        self._start = self._until = 0.0

    def begin(self, share: float) -> None:
        """A step begins, which has this share, 0 to 1, of the time that is left."""
        self._start = self._clock()
        self._until = self._start + share * (self._end - self._start)

    def another(self, done: int) -> bool:
        """Whether another round of the step fits, if it takes what the ``done`` ones took on average."""
        now = self._clock()
        return now + (now - self._start) / done <= self._until
