"""Memory's limit: what a warm load could reach, were it nothing but the page cache copied into memory that is new.

The kernel clears new memory before the bytes are copied to it, so this is below what it copies into memory that is
there; a load cannot be there before it begins. A mapped file copies nothing, and shares what happens to the file.
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
_BLOCK = 8 << 20  # whole huge pages: two threads in one would both clear it


class MemoryLimit:
    """``preadv`` by a thread a processor into huge pages, four of them a call; no format and no checksums."""

    def __init__(self) -> None:
        self._threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
        self.name = f"page cache into new memory, {self._threads} threads"

    def read(self, path: Path, nbytes: int) -> Measured:
        """Bring the file into the page cache, then read it all; tells the time that ``nbytes`` take at that rate."""
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
        return tensor  # to be given back when the clock has stopped
