"""The first small transfer of a process: answered before anything that was learned is read from disk.

Reading it takes about a millisecond, a third of what a load of 3 MB takes from the page cache, and most programs make
one such call. So that one goes by the priors; what it took is told to the dictionary when that is read, at the
second transfer, at the first large one, or at exit.
"""

from __future__ import annotations

from collections.abc import Callable

from fastio.dicts.context import Context
from fastio.dicts.dictionary import LOCK, Dictionary

SMALL_NBYTES = 8 << 20


class FirstTransfer(Dictionary):
    """Knows the priors only, and remembers what it is told for the dictionary that takes its place."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        self.directory = directory
        self._told: list[Callable[[Dictionary], None]] = []
        self._successor: Dictionary | None = None

    def observe(self, context: Context, nbytes: int, tool: str, seconds: float) -> None:
        self._tell(lambda dictionary: dictionary.observe(context, nbytes, tool, seconds))

    def fail(self, context: Context, nbytes: int, tool: str, reason: str) -> None:
        self._tell(lambda dictionary: dictionary.fail(context, nbytes, tool, reason))

    def hand_over(self, successor: Dictionary) -> None:
        """Tell the dictionary what was learned here, and from now on at once."""
        with LOCK:
            self._successor = successor
            for tell in self._told:
                tell(successor)
            self._told.clear()

    def _tell(self, tell: Callable[[Dictionary], None]) -> None:
        with LOCK:
            if self._successor is None:
                self._told.append(tell)
            else:
                tell(self._successor)
