"""Memory files (memfd), which several processes can map, and mappings that are pinned as long as they are used."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable

from fastio._native import Mapping
from fastio.devices import Accelerator

_never_unmapped: list[Mapping | mmap.mmap] = []  # still registered: other memory must not get the same address


def new_memory_file(name: str, nbytes: int) -> int:
    """Return the descriptor of a new memory file of zeros, which ends with its last user.

    Its bytes are reserved: a page that could not be had later would end a process with SIGBUS. OSError if there are too
    few.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def address_of(mapping: mmap.mmap) -> int:
    """Return the address of a mapping, which stays open as long as it is referred to."""
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))


def pin(
    pin_for: Accelerator, mapping: Mapping | mmap.mmap, address: int, nbytes: int, holder: object
) -> Callable[[], object]:
    """Pin all of a mapping for an accelerator; what is returned unpins it, and so does the end of the ``holder``.

    The mapping is kept until then. The end of the process does not unpin: it frees the memory, and CUDA may be gone
    before.
    """
    pin_for.pin(address, nbytes)
    unpin = weakref.finalize(holder, _unpin, pin_for, mapping, address, os.getpid())
    unpin.atexit = False
    return unpin


def _unpin(accelerator: Accelerator, mapping: Mapping | mmap.mmap, address: int, owner: int) -> None:
    """Unpin the memory, which is unmapped after that; in a forked process, which has no CUDA, do nothing."""
    if os.getpid() != owner:
        return
    try:
        accelerator.unpin_unused(address)
    except BaseException:
        _never_unmapped.append(mapping)
        raise
