"""Free memory that is really there when a timed call wants it."""

from __future__ import annotations

import contextlib
import mmap
import re
from pathlib import Path

# A smaller reserve is used up by what else a fresh process asks for.
_LEAST = 64 << 20
_HUGE_PAGE = 2 << 20
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14; Python's mmap module does not name it


class Reserve:
    """Holds ``nbytes`` or 64 MiB of populated memory (at most half of what is available), to be let go in time.

    On a virtual machine with a balloon, pages that lie free for some seconds go back to the host, and the next to use
    them pays: fresh memory then runs at a twentieth of its speed. So the reserve keeps pages until just before a
    call is timed, and takes them again after it. To take what was free for a moment costs next to nothing; what went to
    the host costs a second a gigabyte. Hence no more is let go than a call may want, and what a call leaves in the page
    cache is best dropped before the reserve takes its pages back. A processor keeps huge pages that it frees for who
    wants huge pages there: so much more is let go, or the page cache would be filled from what the host has. A
    process that is about to time something takes and frees a reserve of its own as well.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = _whole(nbytes)
        self._memory: mmap.mmap | None = None
        self._free = 0  # bytes at its beginning that are let go

    def __enter__(self) -> Reserve:
        self.hold()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def hold(self, all_but: int = 0) -> None:
        """Take the memory, as far as it is not held already; not so many bytes, which somebody still has."""
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
        """Let it go, or so many bytes of it and 64 MiB at least: its pages are now free, and still the machine's.

        What single processors keep of that is let go beyond it, as long as there is any.
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
    """In whole huge pages, and 64 MiB at least."""
    return -(-max(nbytes, _LEAST) // _HUGE_PAGE) * _HUGE_PAGE


def _kept_by_processors() -> int:
    """Bytes in the free lists of single processors (``/proc/zoneinfo``), where huge pages stay huge pages."""
    counts = re.findall(r"^\s+count:\s+(\d+)$", Path("/proc/zoneinfo").read_text(), re.MULTILINE)
    return sum(map(int, counts)) * mmap.PAGESIZE


def available_memory() -> int:
    """Bytes that programs can still get (``MemAvailable``)."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no line MemAvailable")
