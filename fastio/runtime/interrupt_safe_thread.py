"""A thread that can be counted on by who is interrupted, by Ctrl-C or whatever else a signal raises.

Python's own cannot. ``Thread.start`` waits for the thread: who is interrupted meanwhile does not know whether it runs,
may get a RuntimeError ("release unlocked lock") instead, or leave a lock behind for which the thread waits for ever.
From Python 3.10 to 3.12 a ``Thread.join`` that is interrupted takes the thread for ended, though it goes on. The
memory that it fills, and the descriptor that it writes to, may be somebody else's by then.

Nor can any code in Python wait for it whatever comes: an interrupt may be raised before the first line of a
``finally``. Who must not go on before the work is over starts it in a :class:`fastio._native.JoinOnExit`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from _thread import start_new_thread
from collections.abc import Callable
from math import inf

from fastio._native import JoinOnExit, Latch, ThreadTask

LOOK_IN_SECONDS = 0.1
"""How often who waits looks whether what is waited for can still come."""


class NoThreadError(RuntimeError):
    """The system has no thread left: of the user (``ulimit -u``), or of the container (``pids.max``)."""


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
        self.has_begun = False

    @property
    def is_running(self) -> bool:
        """Whether the work goes on. Never in a forked child, which does not have the thread.

        Nor where it was never done: a thread may find no memory for its first call.
        """
        return self.has_begun and not self._has_ended.is_open and os.getpid() == self._process

    def start(self, within: JoinOnExit | None = None) -> None:
        """Begin. Once. Who is interrupted here finds in ``has_begun`` whether it has, or never will.

        Nobody leaves ``within`` before the work is over. NoThreadError if the system has no thread left.
        """
        task = ThreadTask if within is None else within.task
        with self._gate:
            try:
                # No name is given to the task: it must go with who carries it, and an interrupt keeps our names.
                start_new_thread(self._begin, (task(self._run, self._has_ended),))
            except RuntimeError as error:
                raise NoThreadError(str(error)) from error
            self.has_begun = True
        while self._name and self.is_running and not self._is_known.wait(LOOK_IN_SECONDS):
            pass

    def wait(self, seconds: float = inf) -> bool:
        """Return when no work goes on, or after so many seconds; gives whether none does."""
        if self.is_running:
            self._has_ended.wait(seconds)
        return not self.is_running

    def _begin(self, task: ThreadTask) -> None:
        with self._gate:
            pass
        if not self.has_begun:
            return
        if self._name:
            with contextlib.suppress(RuntimeError):  # there is no room for another thread: so this one does the work
                threading.Thread(target=task, name=self._name, daemon=False).start()
                return
        task()

    def _run(self) -> None:
        self._is_known.open()
        work = self._work
        del self._work  # it may hold much, such as who holds this
        work()
