"""A thread that can be counted on by who is interrupted, by Ctrl-C or whatever else a signal raises.

Python's own cannot. ``Thread.start`` waits for the thread: who is interrupted meanwhile does not know whether it runs.
From Python 3.10 to 3.12 a ``Thread.join`` that is interrupted takes the thread for ended, though it goes on. The
memory that it fills, and the descriptor that it writes to, may be somebody else's by then.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from math import inf

_LOOK_IN_SECONDS = 0.1


class Latch:
    """Once opened, it stays open. Whose wait for that is interrupted may wait again."""

    def __init__(self) -> None:
        self.is_open = False
        self._closed = threading.Lock()
        self._closed.acquire()

    def open(self) -> None:
        """Let them go on. A second call does nothing."""
        self.is_open = True
        self._wake_next()

    def wait(self, seconds: float = inf) -> bool:
        """Return when it is open, or after so many seconds; gives whether it is open."""
        end = time.monotonic() + seconds
        while not self.is_open and (left := end - time.monotonic()) > 0:
            # Who is interrupted between the two leaves it closed: so the others look in from time to time.
            if self._closed.acquire(timeout=min(left, _LOOK_IN_SECONDS)):
                self._wake_next()
        return self.is_open

    def _wake_next(self) -> None:
        with contextlib.suppress(RuntimeError):  # somebody else has, just now
            self._closed.release()


class WorkThread:
    """Runs ``work``, which raises nothing, on a thread from :meth:`start` on.

    The interpreter waits for it before it ends, unless it is a ``daemon``.
    """

    def __init__(self, work: Callable[[], None], name: str, daemon: bool = True) -> None:
        self._work: Callable[[], None] | None = work
        self._thread = threading.Thread(target=self._run, name=name, daemon=daemon)
        self._gate = threading.Lock()  # the thread does nothing before it is free
        self._ended = Latch()
        self._process = os.getpid()
        self.has_begun = False

    @property
    def is_running(self) -> bool:
        """Whether the work goes on. Never in a forked child, which does not have the thread."""
        return self.has_begun and not self._ended.is_open and os.getpid() == self._process

    def start(self) -> None:
        """Begin. Once. Who is interrupted here finds in ``has_begun`` whether it has, or never will."""
        with self._gate:
            self._thread.start()
            self.has_begun = True

    def wait(self, seconds: float = inf) -> bool:
        """Return when no work goes on, or after so many seconds; gives whether none does."""
        if self.is_running and self._ended.wait(seconds):
            self._thread.join()  # which takes no more than a moment
        return not self.is_running

    def finish(self, hurry: Callable[[], None]) -> None:
        """Return when no work goes on, whatever interrupts that, and raise the last interrupt then.

        ``hurry`` is called before, if it does: it may have the work end early.
        """
        interrupt: BaseException | None = None
        while self.is_running:
            try:
                hurry()
                self.wait()
            except BaseException as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt

    def _run(self) -> None:
        with self._gate:
            work, self._work = self._work, None  # it may hold much, such as who holds this
        if not self.has_begun or work is None:
            return
        try:
            work()
        finally:
            self._ended.open()
