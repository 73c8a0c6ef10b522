"""How often a dictionary is measured again: never, every N calls, every N seconds (Fastensor paper, section 4.1)."""

from __future__ import annotations

from collections.abc import Callable

from fastio.errors import kind_of, quoted


class Renewal:
    """Tells when a renewal is due. ``text`` is ``""``, ``"5000"`` (calls) or ``"3600s"`` (seconds of ``clock``)."""

    def __init__(self, text: str, clock: Callable[[], float]) -> None:
        if not isinstance(text, str):
            raise ValueError(f"renew={text!r}: expected text: '' for never, '5000' for calls or '3600s' for seconds")
        if not callable(clock):
            raise TypeError(f"clock={quoted(clock)} is {kind_of(clock)}: expected a function that returns seconds")
        number = text.strip().removesuffix("s")
        if text.strip() and (not number.isascii() or not number.isdigit() or int(number) == 0):
            raise ValueError(f"renew={text!r}: expected '' for never, '5000' for calls or '3600s' for seconds")
        every = int(number) if number else 0
        in_seconds = text.strip().endswith("s")
        self._clock = clock
        self._every_calls = 0 if in_seconds else every
        self._every_seconds = every if in_seconds else 0
        self._calls = 0
        self._since = clock() if in_seconds else 0.0

    def count(self) -> None:
        """Count an observed call."""
        self._calls += 1

    def due(self) -> bool:
        """Whether a renewal is due. If so, the next period begins."""
        if self._every_calls:
            if self._calls < self._every_calls:
                return False
            self._calls = 0
            return True
        if self._every_seconds:
            now = self._clock()
            if now - self._since < self._every_seconds:
                return False
            self._since = now
            return True
        return False
