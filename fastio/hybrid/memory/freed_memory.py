"""Returns freed memory that glibc keeps (blocks below 32 MiB) to the system."""

from __future__ import annotations

import ctypes

_MOST = 64 << 20  # bytes freed before a trim


class FreedMemory:
    """Counts freed bytes, and calls ``malloc_trim`` from time to time."""

    def __init__(self) -> None:
        self._nbytes = 0
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's

    def add(self, nbytes: int) -> None:
        """Count more freed bytes."""
        self._nbytes += nbytes
        if self._nbytes >= _MOST and self._trim is not None:
            self._trim(0)
            self._nbytes = 0
