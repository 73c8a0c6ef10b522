"""The dictionary of the first small transfer of a process: chooses by the priors, before any file is read.

Reading the learned times takes about a millisecond, a third of the time of a load of 3 MB from the page cache, and most
programs make one such call. The dictionary gets the time of that call when it is read: at the second transfer, at the
first large one, or at exit.
"""

from __future__ import annotations

from collections.abc import Callable

from fastio.dicts.context import Context
from fastio.dicts.dictionary import LOCK, Dictionary

SMALL_NBYTES = 8 << 20


class FirstTransfer(Dictionary):
    """Knows the priors only, and keeps its observations for the dictionary that replaces it."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        self.directory = directory
        self._kept_reports: list[Callable[[Dictionary], None]] = []
        self._successor: Dictionary | None = None

    def observe(self, context: Context, nbytes: int, tool: str, seconds: float) -> None:
        self._report(lambda dictionary: dictionary.observe(context, nbytes, tool, seconds))

    def fail(self, context: Context, nbytes: int, tool: str, reason: str) -> None:
        self._report(lambda dictionary: dictionary.fail(context, nbytes, tool, reason))

    def hand_over(self, successor: Dictionary) -> None:
        """Report what was observed to the dictionary, and from now on at once."""
        with LOCK:
            self._successor = successor
            for report in self._kept_reports:
                report(successor)
            self._kept_reports.clear()

    def _report(self, report: Callable[[Dictionary], None]) -> None:
        with LOCK:
            if self._successor is None:
                self._kept_reports.append(report)
            else:
                report(self._successor)
