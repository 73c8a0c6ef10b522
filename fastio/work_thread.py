"""A thread that can be counted on by who is interrupted, by Ctrl-C or whatever else a signal raises.

Python's own cannot. ``Thread.start`` waits for the thread: who is interrupted meanwhile does not know whether it runs,
may get a RuntimeError ("release unlocked lock") instead, or leave a lock behind for which the thread waits for ever.
From Python 3.10 to 3.12 a ``Thread.join`` that is interrupted takes the thread for ended, though it goes on. The
memory that it fills, and the descriptor that it writes to, may be somebody else's by then.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from _thread import start_new_thread
from collections.abc import Callable
from math import inf

LOOK_IN_SECONDS = 0.1
"""How often who waits looks whether what is waited for can still come."""


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
            if self._closed.acquire(timeout=min(left, LOOK_IN_SECONDS)):
                self._wake_next()
        return self.is_open

    def _wake_next(self) -> None:
        with contextlib.suppress(RuntimeError):  # somebody else has, just now
            self._closed.release()


class NoThreadError(RuntimeError):
    """The system has no thread left: of the user (``ulimit -u``), or of the container (``pids.max``)."""


class _Sign:
    """Of life: what runs the work holds it."""


class WorkThread:
    """Runs ``work``, which raises nothing, on a thread from :meth:`start` on.

    With a ``name`` it is a thread of Python's with that name, for which the interpreter waits before it ends.
    """

    def __init__(self, work: Callable[[], None], name: str = "") -> None:
        self._work = work
        self._name = name
        self._gate = threading.Lock()  # the work does not begin before it is free
        self._is_known, self._has_ended = Latch(), Latch()
        self._process = os.getpid()
        self._sign: weakref.ref[_Sign] | None = None
        self.has_begun = False

    @property
    def is_running(self) -> bool:
        """Whether the work goes on. Never in a forked child, which does not have the thread.

        Nor where it was never done: a thread may find no memory for its first call.
        """
        if not self.has_begun or self._has_ended.is_open or os.getpid() != self._process:
            return False
        return self._sign is None or self._sign() is not None

    def start(self) -> None:
        """Begin. Once. Who is interrupted here finds in ``has_begun`` whether it has, or never will.

        NoThreadError if the system has none left: then it has not.
        """
        sign = _Sign()
        self._sign = weakref.ref(sign)
        with self._gate:
            try:
                start_new_thread(self._begin, (sign,))
            except RuntimeError as error:
                raise NoThreadError(str(error)) from error
            self.has_begun = True
        del sign
        while self._name and self.is_running and not self._is_known.wait(LOOK_IN_SECONDS):
            pass

    def wait(self, seconds: float = inf) -> bool:
        """Return when no work goes on, or after so many seconds; gives whether none does."""
        end = time.monotonic() + seconds
        while self.is_running and (left := end - time.monotonic()) > 0:
            self._has_ended.wait(min(left, LOOK_IN_SECONDS))
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

    def _begin(self, sign: _Sign) -> None:
        with self._gate:
            pass
        if not self.has_begun:
            return
        if self._name:
            with contextlib.suppress(RuntimeError):  # there is no room for another thread: so this one does the work
                threading.Thread(target=self._run, args=(sign,), name=self._name, daemon=False).start()
                return
        self._run(sign)

    def _run(self, _sign: _Sign) -> None:
        self._is_known.open()
        work = self._work
        del self._work  # it may hold much, such as who holds this
        try:
            work()
        finally:
            del work
            self._has_ended.open()
