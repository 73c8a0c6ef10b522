"""Sends messages between ranks on a thread of its own while this one does something else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from fastio._native import Control, JoinOnExit
from fastio.checkpoint.ranks.gloo import Gloo
from fastio.runtime.interrupt_safe_thread import NoThreadError, WorkThread


@contextlib.contextmanager
def meanwhile(connections: Gloo, work: Callable[[], object]) -> Iterator[None]:
    """Run ``work``, which makes calls of the connections, while the context lasts, and to its end; raise its error.

    An error inside, as of an interrupt, ends the connections, so that the work does not wait for other ranks.
    """
    other = _Work(work)
    with JoinOnExit(Control(), other.begin):
        try:
            yield
            other.wait()
        except BaseException as error:
            connections.close(f"a save of rank {connections.rank} was interrupted ({type(error).__name__})")
            raise


class _Work:
    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._thread = WorkThread(self._run)
        self._has_run = False
        self._error: BaseException | None = None

    def begin(self, within: JoinOnExit) -> None:
        with contextlib.suppress(NoThreadError):  # then it runs when it is waited for
            self._thread.start(within)

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # raised when it is waited for
            self._error = error
        self._has_run = True

    def wait(self) -> None:
        """Return when the work has ended; raise its error. Interruptible."""
        self._thread.wait()
        if not self._has_run:
            self._run()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame
