"""Work that goes on behind the training: one piece at a time, its error kept for whoever asks next."""

from __future__ import annotations

from collections.abc import Callable

from fastio._native import Latch
from fastio.errors import CheckpointError
from fastio.runtime.interrupt_safe_thread import LOOK_IN_SECONDS, WorkThread


class BackgroundWrite:
    """Runs ``work`` on a thread, from ``start`` on, and if that went well, ``afterwards``, for which nobody need wait.

    ``at_last`` is called then, whatever happened. The interpreter waits for all of it before it ends. Made and
    started in two steps, so that who is interrupted while it starts knows of it already: ``has_begun`` tells whether it
    has.
    """

    def __init__(
        self, work: Callable[[], None], afterwards: Callable[[], None], at_last: Callable[[BackgroundWrite], None]
    ) -> None:
        self._work, self._afterwards, self._at_last = work, afterwards, at_last
        self._is_done = Latch()
        self._error: BaseException | None = None
        self._thread = WorkThread(self._run, "fastio-checkpoint")

    def start(self) -> None:
        """Begin. Once."""
        self._thread.start()

    @property
    def has_begun(self) -> bool:
        """Whether it began, and may have ended since."""
        return self._thread.has_begun

    @property
    def is_working(self) -> bool:
        """Whether ``work`` goes on still."""
        return self._thread.is_running and not self._is_done.is_open

    def wait(self) -> None:
        """Return when ``work`` has ended, or was never started."""
        while self._thread.is_running and not self._is_done.wait(LOOK_IN_SECONDS):
            pass

    def join(self) -> None:
        """Return when all of it has ended."""
        self._thread.wait()

    def complain(self) -> None:
        """Raise the error, if there was one by now, or if the work was never done. Once."""
        error, self._error = self._error, None
        if self._thread.has_begun and not self._thread.is_running and not self._is_done.is_open:
            self._is_done.open()
            error = CheckpointError("the step was not written: its thread found no memory to begin")
        if error is not None:
            raise error

    def _run(self) -> None:
        work, afterwards, at_last = self._work, self._afterwards, self._at_last
        del self._work, self._afterwards, self._at_last  # they may hold the one before, and that the one before it
        try:
            try:
                work()
            except BaseException as error:
                self._error = error  # before anybody is told that it has ended
                return
            finally:
                self._is_done.open()
            afterwards()
        except BaseException as error:  # raised by complain()
            self._error = error
        finally:
            at_last(self)
