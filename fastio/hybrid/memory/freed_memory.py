"""Memory that was freed and that glibc keeps: blocks below 32 MiB, which would count as this process's for ever."""

from __future__ import annotations

import ctypes

_MOST = 64 << 20  # bytes


class Freed:
    """Counts bytes that are freed, and has the allocator give them to the system from time to time."""

    def __init__(self) -> None:
        self._nbytes = 0
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's

    def add(self, nbytes: int) -> None:
        """So many more have been freed."""
        self._nbytes += nbytes
        if self._nbytes >= _MOST and self._trim is not None:
            self._trim(0)
            self._nbytes = 0
