"""Runs a write on a background thread, and keeps its error for the next call."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from math import inf

from fastio._native import Latch
from fastio.checkpoint.save_handle import SaveFuture
from fastio.errors import CheckpointError
from fastio.results import SaveResult
from fastio.runtime.interrupt_safe_thread import POLL_SECONDS, WorkThread

FREED_SECONDS = 0.01
"""How often it is looked whether a write freed its memory before its end."""


class BackgroundWrite:
    """Runs ``work`` on a thread, then, if that succeeded, ``cleanup``, for which :meth:`wait` does not wait.

    ``written`` gets the result of ``work``, or its error; nothing if that is None. ``on_end`` is called last in any
    case. ``nbytes`` of memory are read by ``work``, until it ends or calls :meth:`free`. The interpreter waits for
    all of it before it exits. Creation and start are two steps, so that a caller that is interrupted during the
    start has the object: ``has_begun`` says whether it runs.
    """

    def __init__(
        self,
        work: Callable[[], SaveResult | None],
        cleanup: Callable[[], None],
        on_end: Callable[[BackgroundWrite], None],
        written: SaveFuture[SaveResult],
        nbytes: int,
    ) -> None:
        self._work, self._cleanup, self._on_end = work, cleanup, on_end
        self._written = written
        self.nbytes = nbytes
        self._is_done = Latch()
        self._is_freed = False
        written.add_done_callback(lambda _: self._is_done.open())  # before those of the user, which may take long
        self._error: BaseException | None = None
        self._thread_id: int | None = None  # while it runs
        self._thread = WorkThread(self._run, "fastio-checkpoint")

    def start(self) -> None:
        """Start the thread. Call it once."""
        self._thread.start()

    @property
    def has_begun(self) -> bool:
        """Whether the thread started; it may have ended since."""
        return self._thread.has_begun

    @property
    def is_working(self) -> bool:
        """Whether ``work`` is still running."""
        return self._thread.is_running and not self._is_done.is_open

    @property
    def reads_memory(self) -> bool:
        """Whether ``work`` may still read the memory that it was given."""
        return self.is_working and not self._is_freed

    def free(self) -> None:
        """Note that ``work`` reads the memory no more, although it is not done."""
        self._is_freed = True

    @property
    def is_running(self) -> bool:
        """Whether the thread is still running."""
        return self._thread.is_running

    @property
    def is_on_its_thread(self) -> bool:
        """Whether the caller is the thread."""
        return self._thread_id == threading.get_ident()

    def wait(self) -> None:
        """Return when ``work`` has ended, or was never started."""
        while self._thread.is_running and not self._is_done.wait(POLL_SECONDS):
            pass

    def wait_freed(self) -> None:
        """Return when ``work`` reads the memory no more."""
        while self.reads_memory and not self._is_done.wait(FREED_SECONDS):
            pass

    def join(self, seconds: float = inf) -> bool:
        """Return when the thread has ended, or after so many seconds; returns whether it has ended."""
        return self._thread.wait(seconds)

    def raise_error(self) -> None:
        """Raise the error of ``work`` or ``cleanup``, once; CheckpointError if ``work`` never ran.

        An error of ``work`` that was retrieved from ``written`` is not raised.
        """
        error, self._error = self._error, None
        if self._thread.has_begun and not self._thread.is_running and not self._is_done.is_open:
            error = CheckpointError("the step was not written: its thread found no memory to begin")
            self._written.set_exception(error)
        if error is not None and not self._written.is_retrieved:
            raise error

    def _run(self) -> None:
        work, cleanup, on_end = self._work, self._cleanup, self._on_end
        del self._work, self._cleanup, self._on_end  # they may refer to the write before, which refers to its own one
        self._thread_id = threading.get_ident()
        try:
            try:
                result = work()
            except BaseException as error:
                traceback.clear_frames(error.__traceback__)  # a handle may keep the error, but not the state's copy
                self._error = error  # set before the latch opens
                self._written.set_exception(error)
                return
            try:
                if result is None:
                    self._is_done.open()
                else:
                    self._written.set_result(result)
            finally:  # a callback may raise SystemExit
                cleanup()
        except BaseException as error:
            self._error = error
        finally:
            self._thread_id = None  # the next thread may get the same one
            on_end(self)
