"""Keeps populated memory until just before a timed call, so that the host has not taken it back."""

from __future__ import annotations

import contextlib
import mmap
import re
from pathlib import Path

# A smaller reserve would be used up by other allocations of a fresh process.
_LEAST = 64 << 20
_HUGE_PAGE = 2 << 20
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14; Python's mmap module does not name it


class Reserve:
    """Holds ``nbytes`` or 64 MiB of populated memory, at most half of the available, until just before a timed call.

    On a virtual machine with a balloon, pages that lie free for some seconds go back to the host. Their next use is
    slow: fresh memory then runs at a twentieth of its speed. So the reserve keeps pages until just before a call is
    timed, and takes them again after it. Pages that were free for a moment cost almost nothing; pages that went to the
    host cost a second a gigabyte. So no more is released than a call may need, and the page cache that a call leaves
    should be dropped before the reserve takes its pages back. A processor keeps the huge pages that it frees for later
    huge pages; as much is released in addition, or the page cache would be filled with pages from the host. A process
    that is about to time something takes and frees a reserve of its own as well.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = _whole(nbytes)
        self._memory: mmap.mmap | None = None
        self._free = 0  # bytes released, from the beginning

    def __enter__(self) -> Reserve:
        self.hold()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def hold(self, all_but: int = 0) -> None:
        """Take the memory that is not held already, except ``all_but`` bytes that are in use elsewhere."""
        missing = (self._free if self._memory is not None else self._nbytes) - all_but
        taken = min(missing, available_memory() // 2)
        taken -= taken % _HUGE_PAGE
        if taken <= 0:
            return
        if self._memory is None:
            self._memory = mmap.mmap(-1, taken, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self._free = taken
            with contextlib.suppress(OSError):  # a kernel without huge pages
                self._memory.madvise(mmap.MADV_HUGEPAGE)
        start = self._free - taken
        try:
            self._memory.madvise(POPULATE_WRITE, start, taken)
        except OSError:  # an older kernel: touch every page instead
            for offset in range(start, self._free, mmap.PAGESIZE):
                self._memory[offset] = 1
        self._free = start

    def release(self, nbytes: int | None = None) -> None:
        """Free all of it, or ``nbytes`` and at least 64 MiB. The pages are then free and still the machine's.

        What single processors keep of these pages is freed in addition, as far as the reserve reaches.
        """
        if self._memory is None:
            return
        if nbytes is None:
            self._memory.close()
            self._memory = None
            return
        missing, kept = _whole(nbytes), _kept_by_processors()
        while missing > 0 and self._free < len(self._memory):
            end = min(len(self._memory), self._free + missing)
            self._memory.madvise(mmap.MADV_DONTNEED, self._free, end - self._free)
            self._free = end
            before, kept = kept, _kept_by_processors()
            missing = (kept - before) // _HUGE_PAGE * _HUGE_PAGE


def _whole(nbytes: int) -> int:
    """Rounded up to whole huge pages, at least 64 MiB."""
    return -(-max(nbytes, _LEAST) // _HUGE_PAGE) * _HUGE_PAGE


def _kept_by_processors() -> int:
    """Bytes in the free lists of single processors (``/proc/zoneinfo``), where huge pages stay huge pages."""
    counts = re.findall(r"^\s+count:\s+(\d+)$", Path("/proc/zoneinfo").read_text(), re.MULTILINE)
    return sum(map(int, counts)) * mmap.PAGESIZE


def available_memory() -> int:
    """Bytes that programs can still allocate (``MemAvailable``)."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no line MemAvailable")
