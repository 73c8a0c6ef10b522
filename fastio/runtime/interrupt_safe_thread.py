"""A thread whose start and join survive KeyboardInterrupt and other exceptions raised by signal handlers.

Python's own threads do not. ``Thread.start`` waits for the thread. If that wait is interrupted, the caller does not
know whether the thread runs, may get a RuntimeError ("release unlocked lock") instead, or may leave a lock held for
which the thread waits forever. From Python 3.10 to 3.12 an interrupted ``Thread.join`` marks a running thread as ended.
The memory that it fills and the descriptor that it writes to may then be reused while it runs.

Python code cannot guarantee a join either: an interrupt may be raised before the first line of a ``finally``. A caller
that must not continue before the work ends starts it in a :class:`fastio._native.JoinOnExit`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from _thread import start_new_thread
from collections.abc import Callable
from math import inf

from fastio._native import JoinOnExit, Latch, ThreadTask

POLL_SECONDS = 0.1
"""How often a waiting thread checks whether the event can still happen."""


class NoThreadError(RuntimeError):
    """The system refuses a new thread: the limit of the user (``ulimit -u``) or container (``pids.max``) is reached."""


class WorkThread:
    """Runs ``work``, which must not raise, on a new thread once :meth:`start` is called.

    With a ``name`` it is a ``threading.Thread`` of that name, for which the interpreter waits at exit.
    """

    def __init__(self, work: Callable[[], None], name: str = "") -> None:
        self._work = work
        self._name = name
        self._gate = threading.Lock()  # the work does not begin while it is held
        self._is_known, self._has_ended = Latch(), Latch()
        self._process = os.getpid()
        self.has_begun = False

    @property
    def is_running(self) -> bool:
        """Whether the work has begun and not ended. False in a forked child, which does not have the thread.

        Also False if the thread ended without running the work: it may lack the memory for its first call.
        """
        return self.has_begun and not self._has_ended.is_open and os.getpid() == self._process

    def start(self, within: JoinOnExit | None = None) -> None:
        """Start the thread. Call it once.

        After an interrupt in here, ``has_begun`` says whether the work runs; if it is False, it never will. The context
        ``within`` does not exit before the work ends. Raises NoThreadError if the system refuses a new thread.
        """
        task = ThreadTask if within is None else within.task
        with self._gate:
            try:
                # No local variable holds the task: it must die with its thread, and a traceback keeps locals alive.
                start_new_thread(self._begin, (task(self._run, self._has_ended),))
            except RuntimeError as error:
                raise NoThreadError(str(error)) from error
            self.has_begun = True
        while self._name and self.is_running and not self._is_known.wait(POLL_SECONDS):
            pass

    def wait(self, seconds: float = inf) -> bool:
        """Wait until the work ends, for at most so many seconds; returns whether it is no longer running."""
        if self.is_running:
            self._has_ended.wait(seconds)
        return not self.is_running

    def _begin(self, task: ThreadTask) -> None:
        with self._gate:
            pass
        if not self.has_begun:
            return
        if self._name:
            with contextlib.suppress(RuntimeError):  # no further thread is available: this one does the work
                threading.Thread(target=task, name=self._name, daemon=False).start()
                return
        task()

    def _run(self) -> None:
        self._is_known.open()
        work = self._work
        del self._work  # it may keep much memory alive, and refer back to the owner of this object
        work()
