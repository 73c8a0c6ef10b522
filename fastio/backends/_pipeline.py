"""Windows of a file passed through a ring of buffers in two steps, each of which runs while others do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fastio._native import Control
from fastio.backends._files import stop_if_cancelled
from fastio.backends._windows import Window
from fastio.memory.staging_buffers import Lease, StagingRing

Wait = Callable[[], object]
Step = Callable[[Window, Lease], Wait]

_PATIENCE = 0.1  # seconds between two looks at whether the transfer was cancelled


@dataclass(slots=True)
class _Flight:
    window: Window
    buffer: Lease
    wait: Wait


class Pipeline:
    """Each window gets a buffer, goes through ``first`` and, when that is over, through ``second``.

    A step starts something and returns what to call to wait for it. Windows are started, and handed on, in file order.
    ``ahead`` is how many may be in the first step at once: few where it is the faster one, so that the buffers are
    where the time is spent. ``settle`` waits for all that was ever started, whether it failed or not.
    """

    def __init__(self, ring: StagingRing, control: Control, path: str, ahead: int) -> None:
        self._ring = ring
        self._control = control
        self._path = path
        self._ahead = ahead
        self._in_first: deque[_Flight] = deque()
        self._in_second: deque[_Flight] = deque()

    def run(self, windows: Iterable[Window], first: Step, second: Step, settle: Wait) -> None:
        """Pass all windows through. After an error, buffers go back only when nothing uses them any more."""
        try:
            for window in windows:
                flight = _Flight(window, self._lease(second), _nothing)
                self._in_first.append(flight)
                flight.wait = first(window, flight.buffer)
                while len(self._in_first) > self._ahead:
                    self._hand_on(second)
            while self._in_first:
                self._hand_on(second)
            while self._in_second:
                self._finish()
        finally:
            settle()
            for flight in (*self._in_first, *self._in_second):
                flight.buffer.release()

    def _lease(self, second: Step) -> Lease:
        while True:
            stop_if_cancelled(self._control, self._path)
            # Waiting while holding buffers that others wait for could last for ever: first give back what one has.
            holds_none = not (self._in_first or self._in_second)
            buffer = self._ring.lease(_PATIENCE if holds_none else 0.0)
            if buffer is not None:
                return buffer
            if self._in_second:
                self._finish()
            elif self._in_first:
                self._hand_on(second)

    def _hand_on(self, second: Step) -> None:
        stop_if_cancelled(self._control, self._path)
        flight = self._in_first.popleft()
        self._in_second.append(flight)
        flight.wait()
        flight.wait = second(flight.window, flight.buffer)

    def _finish(self) -> None:
        flight = self._in_second[0]
        flight.wait()
        self._in_second.popleft()
        flight.buffer.release()
        self._control.advance(flight.window.nbytes)


def _nothing() -> None:
    pass
