"""Work that goes on behind the training: one piece at a time, its error kept for whoever asks next."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Pending:
    """Runs ``work`` on a thread, from ``start`` on, and if that went well, ``afterwards``, for which nobody need wait.

    The interpreter waits for both before it ends. Made and started in two steps, so that whoever is interrupted between
    them knows of it already.
    """

    def __init__(self, work: Callable[[], None], afterwards: Callable[[], None]) -> None:
        self._work, self._afterwards = work, afterwards
        self._is_done = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="fastio-checkpoint")

    def start(self) -> None:
        """Begin. Once."""
        self._thread.start()

    @property
    def is_working(self) -> bool:
        """Whether ``work`` goes on still."""
        return self._thread.is_alive() and not self._is_done.is_set()

    def wait(self) -> None:
        """Return when ``work`` has ended, or was never started."""
        if self._thread.ident is not None:
            self._is_done.wait()

    def join(self) -> None:
        """Return when all of it has ended."""
        if self._thread.ident is not None:
            self._thread.join()

    def complain(self) -> None:
        """Raise the error, if there was one by now. Once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        work, afterwards = self._work, self._afterwards
        del self._work, self._afterwards  # they may hold the one before, and that the one before it
        try:
            try:
                work()
            except BaseException as error:
                self._error = error  # before anybody is told that it has ended
                return
            finally:
                self._is_done.set()
            afterwards()
        except BaseException as error:  # raised by complain()
            self._error = error
