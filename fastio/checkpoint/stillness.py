"""How long a training stands still for a save."""

from __future__ import annotations

import time
from math import inf
from types import TracebackType

from fastio.errors import CheckpointError
from fastio.work_thread import Latch


class Stillness:
    """From when it is made until ``end`` is called, on any thread; further calls do nothing.

    As a context it is kept: an exception inside, such as that of Ctrl-C, breaks it, for training may go on then.
    """

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._ended: float | None = None
        self._over = Latch()
        self.is_broken = False

    @property
    def seconds(self) -> float:
        """How long it was, or is by now."""
        ended = self._ended
        return (time.perf_counter() if ended is None else ended) - self._began

    def end(self) -> None:
        """Training may go on."""
        if self._ended is None:
            self._ended = time.perf_counter()
        self._over.open()

    def wait(self, seconds: float = inf) -> bool:
        """Return when training may go on, or after so many seconds; gives whether it may."""
        return self._over.wait(seconds)

    def __enter__(self) -> Stillness:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self.is_broken = True
            self.end()

    def require(self) -> None:
        """CheckpointError if it was broken: what was copied is of no one moment."""
        if self.is_broken:
            raise CheckpointError("the save was interrupted before all of the state was copied")
