"""Free memory that is really there when a timed call wants it."""

from __future__ import annotations

import mmap
from pathlib import Path

# A smaller reserve is used up by what else a fresh process asks for.
_LEAST = 64 << 20
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14; Python's mmap module does not name it


class Reserve:
    """Holds ``nbytes`` or 64 MiB of populated memory (at most half of what is available), to be let go in time.

    On a virtual machine with a balloon, pages that lie free for some seconds go back to the host, and the next to use
    them pays: fresh memory then runs at a twentieth of its speed. So the reserve keeps pages until just before a
    call is timed, and takes them again after it. Free pages lie with the processor that freed them, so a process that
    is about to time something takes and frees a reserve of its own as well.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = max(nbytes, _LEAST)
        self._memory: mmap.mmap | None = None

    def __enter__(self) -> Reserve:
        self.hold()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def hold(self) -> None:
        """Take the memory, if it is not held already."""
        nbytes = min(self._nbytes, available_memory() // 2)
        if self._memory is not None or nbytes <= 0:
            return
        self._memory = memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
            memory.madvise(POPULATE_WRITE)
        except OSError:  # an older kernel, or one without huge pages: touch every page instead
            for offset in range(0, nbytes, mmap.PAGESIZE):
                memory[offset] = 1

    def release(self) -> None:
        """Let it go: its pages are now free, and still the machine's own."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None


def available_memory() -> int:
    """Bytes that programs can still get (``MemAvailable``)."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo has no line MemAvailable")
