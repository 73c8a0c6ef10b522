"""Tells whether an open file was written to."""

from __future__ import annotations

import os

from fastio.errors import CorruptFileError


class Unchanged:
    """The ``size`` of an open file, and the time of its last write when this was made."""

    def __init__(self, path: str, fd: int, size: int) -> None:
        self._path = path
        self._fd = fd
        self._state = size, os.fstat(fd).st_mtime_ns

    def check(self, used: str, cure: str) -> None:
        """Raise CorruptFileError if the file was written to since, while it was ``used``; ``cure`` says what to do."""
        status = os.fstat(self._fd)
        if (status.st_size, status.st_mtime_ns) != self._state:
            problem = f"it was written to while it was {used}: {cure} when it is complete"
            raise CorruptFileError(self._path, None, problem)
