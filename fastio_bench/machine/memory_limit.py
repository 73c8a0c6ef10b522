"""Measures memory's limit for a warm load: copying the page cache into new memory.

The kernel clears new memory before it copies into it, so this is slower than a copy into resident memory; a load's
memory is always new. A mapped file copies nothing, but changes when the file changes.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from fastio.memory.raw_memory import view
from fastio_bench.harness import page_cache
from fastio_bench.harness.rounds import Measured, SystemClock, clocked
from fastio_bench.machine import disk_limit

TOOL = "memory limit"
_MOST_THREADS = 16
_BLOCK = 8 << 20  # whole huge pages: two threads in one page would both clear it


class MemoryLimit:
    """``preadv`` into huge pages, four a call, by one thread a processor; no format and no checksums."""

    def __init__(self) -> None:
        self._threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
        self.name = f"page cache into new memory, {self._threads} threads"

    def read(self, path: Path, nbytes: int) -> Measured:
        """Bring the file into the page cache, then time reading it. Returns the time of ``nbytes`` at that rate."""
        page_cache.warm(path)
        size = path.stat().st_size
        fd = os.open(path, os.O_RDONLY)
        try:
            _, took = clocked(lambda: self._copy(fd, size), SystemClock())
        finally:
            os.close(fd)
        share = nbytes / size
        return replace(took, seconds=took.seconds * share, cpu_seconds=took.cpu_seconds * share, way=self.name)

    def _copy(self, fd: int, size: int) -> object:
        tensor = disk_limit.untouched(size)
        memory = view(tensor.data_ptr(), size)

        def block(begin: int) -> None:
            end = min(begin + _BLOCK, size)
            while begin < end:
                count = os.preadv(fd, [memory[begin:end]], begin)
                if not count:
                    raise OSError(f"the file ends at byte {begin} of {size}")
                begin += count

        with ThreadPoolExecutor(self._threads) as threads:
            for _ in threads.map(block, range(0, size, _BLOCK)):
                pass
        return tensor  # freed after the clock has stopped
