"""Work that goes on behind the training: one piece at a time, its error kept for whoever asks next."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Pending:
    """Runs ``work`` on a thread, from ``start`` on. The interpreter waits for it before it ends.

    Made and started in two steps, so that whoever is interrupted between them knows of it already.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="fastio-checkpoint")

    def start(self) -> None:
        """Begin. Once."""
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether it goes on still."""
        return self._thread.is_alive()

    def join(self) -> None:
        """Return when it has ended, or was never started."""
        if self._thread.ident is not None:
            self._thread.join()

    def result(self) -> None:
        """Raise its error, if it had one. When it has ended."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # raised by result()
            self._error = error
