"""A two-step pipeline over a ring of buffers: the steps of different windows run at the same time."""

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

_POLL_SECONDS = 0.1  # between two checks whether the transfer was cancelled


@dataclass(slots=True)
class _InFlight:
    window: Window
    buffer: Lease
    wait: Wait


class Pipeline:
    """Passes each window, with a buffer of its own, through ``first`` and then through ``second``.

    A step starts asynchronous work and returns a function that waits for it. Both steps take windows in file order.
    ``ahead`` is how many windows may be in the first step at once: few if it is the faster one, so that the slower one
    gets most of the buffers. ``settle`` waits for all work that was started, whether it failed or not.
    """

    def __init__(self, ring: StagingRing, control: Control, path: str, ahead: int) -> None:
        self._ring = ring
        self._control = control
        self._path = path
        self._ahead = ahead
        self._in_first: deque[_InFlight] = deque()
        self._in_second: deque[_InFlight] = deque()

    def run(self, windows: Iterable[Window], first: Step, second: Step, settle: Wait) -> None:
        """Run all windows through both steps. After an error, buffers are released once nothing uses them."""
        try:
            for window in windows:
                entry = _InFlight(window, self._lease(second), _nothing)
                self._in_first.append(entry)
                entry.wait = first(window, entry.buffer)
                while len(self._in_first) > self._ahead:
                    self._start_second(second)
            while self._in_first:
                self._start_second(second)
            while self._in_second:
                self._finish()
        finally:
            settle()
            for entry in (*self._in_first, *self._in_second):
                entry.buffer.release()

    def _lease(self, second: Step) -> Lease:
        while True:
            stop_if_cancelled(self._control, self._path)
            # Two pipelines that hold buffers and wait for more could deadlock: release our own before waiting.
            holds_none = not (self._in_first or self._in_second)
            buffer = self._ring.lease(_POLL_SECONDS if holds_none else 0.0)
            if buffer is not None:
                return buffer
            if self._in_second:
                self._finish()
            elif self._in_first:
                self._start_second(second)

    def _start_second(self, second: Step) -> None:
        stop_if_cancelled(self._control, self._path)
        entry = self._in_first.popleft()
        self._in_second.append(entry)
        entry.wait()
        entry.wait = second(entry.window, entry.buffer)

    def _finish(self) -> None:
        entry = self._in_second[0]
        entry.wait()
        self._in_second.popleft()
        entry.buffer.release()
        self._control.advance(entry.window.nbytes)


def _nothing() -> None:
    pass
