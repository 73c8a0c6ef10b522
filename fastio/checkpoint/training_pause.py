"""Measures and ends the time for which a save blocks training."""

from __future__ import annotations

import time

from fastio._native import Latch
from fastio.errors import CheckpointError


class TrainingPause(Latch):
    """A latch that is closed from its creation until any thread opens it: then training may continue.

    As a context manager it is broken by an exception inside, such as that of Ctrl-C, for training may continue then.
    """

    def __init__(self) -> None:
        super().__init__()
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """How long the pause lasted, or has lasted so far."""
        return (self.opened or time.perf_counter()) - self._began

    def require(self) -> None:
        """Raise CheckpointError if the pause was broken: the state may have changed during the copy."""
        if self.is_broken:
            raise CheckpointError("the save was interrupted before all of the state was copied")
