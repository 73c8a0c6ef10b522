"""The handle that a save returns: futures of its copy and of its file, and how far it is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, TypeVar

from fastio.errors import CheckpointError
from fastio.results import SaveResult
from fastio.runtime.uncopied import Uncopied
from fastio.sizes import format_size

_Result = TypeVar("_Result")


class SaveFuture(Future[_Result]):
    """A ``concurrent.futures.Future`` that can also be awaited. It cannot be cancelled.

    ``is_retrieved``: an error was returned or raised to somebody, so the Checkpointer need not raise it. Functions of
    ``add_done_callback`` run on the thread that writes: keep them short, and call no Checkpointer there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self.is_retrieved = False
        self._process = os.getpid()

    @property
    def is_failed(self) -> bool:
        """Whether it is done, with an error; this does not count as retrieving it."""
        return self.done() and super().exception() is not None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, or None if there was none; waits as :meth:`result` does."""
        self._require_process()
        error = super().exception(timeout)
        self.is_retrieved = error is not None
        return error

    def result(self, timeout: float | None = None) -> _Result:
        """Return the result, or raise the error; TimeoutError if neither is there after ``timeout`` seconds."""
        self.exception(timeout)
        return super().result()

    def __await__(self) -> Generator[Any, None, _Result]:
        self._require_process()
        return asyncio.wrap_future(self).__await__()

    def _require_process(self) -> None:
        if os.getpid() != self._process:
            raise CheckpointError(f"this save is of process {self._process}, which forked this one: ask there")


class Meter:
    """How many bytes of a file are written, of how many."""

    def __init__(self, total: int) -> None:
        self.now = (0, total)

    def advance(self, done: int, total: int) -> None:
        """Take a report of progress."""
        self.now = (done, total)


class SaveHandle(Uncopied):
    """What :meth:`fastio.Checkpointer.save` returns; false in a condition if the step was skipped.

    ``staged`` is done when the state may change again, which is before ``save`` returns. ``written`` is done when the
    step is visible and would survive a power cut; its result is a :class:`fastio.SaveResult`. Of a skipped step both
    fail with CheckpointError. Their errors are those that the Checkpointer's next call raises: not a second time if
    they were retrieved here. ``step`` is the step's number, ``path`` its folder, ``nbytes`` the tensor bytes of it.

    >>> handle = checkpointer.save(step, state)
    >>> handle.progress
    >>> handle.written.result(timeout=60).bandwidth  # or: await handle.written
    """

    def __init__(self, step: int, path: str, nbytes: int, meter: Meter) -> None:
        self.step = step
        self.path = path
        self.nbytes = nbytes
        self.staged: SaveFuture[None] = SaveFuture()
        self.written: SaveFuture[SaveResult] = SaveFuture()
        self._meter = meter
        self._is_skipped = False

    @classmethod
    def of_skipped(cls, step: int, path: str, why: str) -> SaveHandle:
        """Return the handle of a step that is not saved."""
        handle = cls(step, path, 0, Meter(0))
        handle._is_skipped = True
        for future in (handle.staged, handle.written):
            future.set_exception(CheckpointError(f"step {step} was skipped: {why}; a skipped save's handle is false"))
        return handle

    @property
    def progress(self) -> tuple[int, int]:
        """Bytes written, and bytes in all, of the file that is being written; a tenth of a second old."""
        return self._meter.now

    @property
    def route(self) -> str | None:
        """The tool that wrote the step and the route of its bytes, as in ``"uring (direct)"``; None before the end."""
        if not self.written.done() or self.written.is_failed:
            return None
        result = self.written.result()
        return f"{result.tool} ({result.route})"

    def __bool__(self) -> bool:
        return not self._is_skipped

    def __repr__(self) -> str:
        if self._is_skipped:
            state = "skipped"
        elif self.written.done():
            state = "failed" if self.written.is_failed else f"written by {self.route}"
        else:
            state = f"{format_size(self.progress[0])} of {format_size(self.progress[1])} written"
        return f"<fastio SaveHandle of step {self.step}: {format_size(self.nbytes)}, {state}>"
