"""Has glibc give the memory of moved tensors back to the system: what moves out frees nothing otherwise.

Invariant: once an Offload with a budget moved a tensor of the CPU out, or a pass of one without a budget took an eighth
of the memory that was available at its begin, blocks of at least ``THRESHOLD`` bytes are mappings of their own, which
freeing them unmaps.

By itself glibc raises that threshold to 32 MiB, and keeps smaller blocks in its heap. It cannot use one again for a
tensor of the same size: torch asks for aligned memory, for which glibc looks for a larger block. So the heap grew by
all that was saved. With the setting, new memory is touched instead: a transformer's plain step (one thread) took 20 to
25 % more CPU time with tensors of 1 to 4 MiB, whatever the threshold, and 15 to 20 % with 128 to 512 KiB (5 to 10 %
with a threshold of 1 MiB, but then tensors of 800 KiB left a heap of 200 MiB more, with a budget of 50 MiB). So nothing
is set while memory is plenty. The setting holds for the whole process.
"""

from __future__ import annotations

import ctypes
import os

from fastio.memory.available_memory import available_memory

THRESHOLD = 256 << 10  # bytes
_MMAP_THRESHOLD = -3  # of mallopt(3)
_LOOKS = 32  # at the memory that is left, while as much moves as there was

_returned = False  # in this process


class FreedBlocks:
    """Sees how much an Offload moves out of the memory of the CPU. ``limited``: it was given a budget."""

    def __init__(self, limited: bool) -> None:
        self._limited = limited
        self._pass = 0
        self._available = 0  # when the first tensor of the pass moved
        self._moved = 0  # since the latest look

    def moved(self, nbytes: int, number: int) -> None:
        """A tensor of the CPU moves out, of the forward pass with this number."""
        if _returned:
            return
        if self._limited:
            return_to_system()
            return
        if number > self._pass:
            self._pass, self._available, self._moved = number, available_memory() or 0, 0
        self._moved += nbytes
        if self._moved > self._available // _LOOKS:
            self._moved = 0
            if (available_memory() or 0) <= self._available * 7 // 8:
                return_to_system()


def return_to_system() -> None:
    """Have freed blocks go back to the system, unless the environment or another allocator says what they do."""
    global _returned
    if not _returned:
        _returned = True
        if not chosen_by_environment() and (libc := _glibc()) is not None:
            libc.mallopt(_MMAP_THRESHOLD, THRESHOLD)
            libc.malloc_trim(0)  # what was freed before


def are_returned() -> bool:
    """Return whether freed blocks go back to the system: by this module or by the environment."""
    return chosen_by_environment() or (_returned and _glibc() is not None)


def chosen_by_environment() -> bool:
    """Return whether the environment sets the threshold."""
    return "MALLOC_MMAP_THRESHOLD_" in os.environ or "mmap_threshold" in os.environ.get("GLIBC_TUNABLES", "")


def _glibc() -> ctypes.CDLL | None:
    """Return glibc; None if the process has another C library, or another allocator (jemalloc, tcmalloc)."""
    try:
        libc, program = ctypes.CDLL("libc.so.6"), ctypes.CDLL(None)
        libc.mallopt  # noqa: B018 - AttributeError where there is none
    except (OSError, AttributeError):
        return None
    addresses = [ctypes.cast(one.malloc, ctypes.c_void_p).value for one in (libc, program)]
    return libc if addresses[0] == addresses[1] else None
