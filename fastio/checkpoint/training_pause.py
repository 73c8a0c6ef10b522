"""How long a training stands still for a save."""

from __future__ import annotations

import time

from fastio._native import Latch
from fastio.errors import CheckpointError


class TrainingPause(Latch):
    """From when it is made until it is opened, on any thread: then training may go on.

    As a context it is kept: an exception inside, such as that of Ctrl-C, breaks it, for training may go on then.
    """

    def __init__(self) -> None:
        super().__init__()
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """How long it was, or is by now."""
        return (self.opened or time.perf_counter()) - self._began

    def require(self) -> None:
        """CheckpointError if it was broken: what was copied is of no one moment."""
        if self.is_broken:
            raise CheckpointError("the save was interrupted before all of the state was copied")
