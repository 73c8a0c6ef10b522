"""Runs a transfer on a thread of its own, so that the caller can show progress and react to Ctrl-C meanwhile.

A small transfer has no thread: it runs when it is waited for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Generic, TypeVar

from fastio._native import Control, JoinOnExit
from fastio.runtime.interrupt_safe_thread import NoThreadError, WorkThread

Result = TypeVar("Result")
Progress = Callable[[int, int], object]
"""Called about ten times a second, and at the end, with bytes done and bytes in all."""

# Below this a thread costs more than it hides.
WORTH_A_THREAD = 16 << 20
_TICK_SECONDS = 0.1


def tell_end(progress: Progress | None, nbytes: int) -> None:
    """Report that all bytes are done, for work without intermediate progress."""
    if progress is not None:
        progress(nbytes, nbytes)


class Job(Generic[Result]):
    """Runs ``work`` once: at once on a thread if ``nbytes`` is large and there is one, else when first waited for.

    See :func:`under_way`.
    """

    def __init__(self, work: Callable[[], Result], control: Control, nbytes: int) -> None:
        self._work = work
        self._control = control
        self._nbytes = nbytes
        self._value: Result | None = None
        self._error: BaseException | None = None
        self._ended = False
        self._told_the_end = False
        self._thread: WorkThread | None = None

    def begin(self, within: JoinOnExit) -> Job[Result]:
        """Start the thread, if there is to be one; return this job."""
        if self._nbytes >= WORTH_A_THREAD:
            self._thread = WorkThread(self._run)
            try:
                self._thread.start(within)
            except NoThreadError:
                self._thread = None
        return self

    def _run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:  # given to the caller, who waits for it
            self._error = error
        self._ended = True

    def wait(self, progress: Progress | None = None) -> Result:
        """Return what ``work`` returned, or raise its exception, once. Interruptible."""
        thread = self._thread
        if thread is not None:
            while thread.is_running or (progress is not None and not self._told_the_end):
                ended = thread.wait(_TICK_SECONDS)
                if progress is not None:
                    self._told_the_end = ended
                    progress(min(self._control.done, self._nbytes), self._nbytes)
        if not self._ended:  # a small one, or no thread could be started
            self._run()
            if progress is not None:
                progress(self._nbytes, self._nbytes)
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame: a cycle, which would keep the callers' tensors alive
        return self._value  # type: ignore[return-value]


def under_way(
    work: Callable[[], Result], control: Control, nbytes: int
) -> contextlib.AbstractContextManager[Job[Result]]:
    """A job as a context manager. When the context ends, for whatever reason, the work has ended too.

    So the memory that it fills may be freed then. Leaving early cancels the work.
    """
    return JoinOnExit(control, Job(work, control, nbytes).begin)
