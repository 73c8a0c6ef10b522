"""Runs a write on a background thread, and keeps its error for the next call."""

from __future__ import annotations

from collections.abc import Callable

from fastio._native import Latch
from fastio.errors import CheckpointError
from fastio.runtime.interrupt_safe_thread import POLL_SECONDS, WorkThread


class BackgroundWrite:
    """Runs ``work`` on a thread, then, if that succeeded, ``cleanup``, for which :meth:`wait` does not wait.

    ``on_end`` is called last in any case. The interpreter waits for all of it before it exits. Creation and start are
    two steps, so that a caller that is interrupted during the start has the object: ``has_begun`` says whether it runs.
    """

    def __init__(
        self, work: Callable[[], None], cleanup: Callable[[], None], on_end: Callable[[BackgroundWrite], None]
    ) -> None:
        self._work, self._cleanup, self._on_end = work, cleanup, on_end
        self._is_done = Latch()
        self._error: BaseException | None = None
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

    def wait(self) -> None:
        """Return when ``work`` has ended, or was never started."""
        while self._thread.is_running and not self._is_done.wait(POLL_SECONDS):
            pass

    def join(self) -> None:
        """Return when the thread has ended."""
        self._thread.wait()

    def raise_error(self) -> None:
        """Raise the error of ``work`` or ``cleanup``, once; CheckpointError if ``work`` never ran."""
        error, self._error = self._error, None
        if self._thread.has_begun and not self._thread.is_running and not self._is_done.is_open:
            self._is_done.open()
            error = CheckpointError("the step was not written: its thread found no memory to begin")
        if error is not None:
            raise error

    def _run(self) -> None:
        work, cleanup, on_end = self._work, self._cleanup, self._on_end
        del self._work, self._cleanup, self._on_end  # they may refer to the write before, which refers to its own one
        try:
            try:
                work()
            except BaseException as error:
                self._error = error  # set before the latch opens
                return
            finally:
                self._is_done.open()
            cleanup()
        except BaseException as error:
            self._error = error
        finally:
            on_end(self)
