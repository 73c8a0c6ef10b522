"""A transfer on a thread of its own, so that its caller can show progress or hear Ctrl-C meanwhile.

A small one has no thread: it runs when it is waited for.
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
        """Begin, if there is to be a thread; gives this job."""
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
        """What ``work`` returned, or the exception it raised; as often as asked. Interruptible."""
        thread = self._thread
        if thread is not None:
            while thread.is_running or (progress is not None and not self._told_the_end):
                ended = thread.wait(_TICK_SECONDS)
                if progress is not None:
                    self._told_the_end = ended
                    progress(min(self._control.done, self._nbytes), self._nbytes)
        if not self._ended:  # a small one, or there was no thread for it, or no memory for the thread
            self._run()
            if progress is not None:
                progress(self._nbytes, self._nbytes)
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]


def under_way(
    work: Callable[[], Result], control: Control, nbytes: int
) -> contextlib.AbstractContextManager[Job[Result]]:
    """A job as a context: whatever happens inside, and whatever signals come, the work has ended when the context has.

    So memory that it fills can go. Leaving early cancels it.
    """
    return JoinOnExit(control, Job(work, control, nbytes).begin)
