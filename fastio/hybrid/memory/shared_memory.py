"""Host memory that several processes of a machine share."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

from fastio.devices import Accelerator
from fastio.errors import RefusedError

_NAME = "fastio-hybrid"


def memory_file(nbytes: int, token: str) -> int:
    """Return the descriptor of a new memory file (memfd) of zeros. It has no name, and ends with its last user.

    Its bytes are reserved: a page that is missing later would end a process. RefusedError if there are too few.
    """
    fd = os.memfd_create(f"{_NAME}-{token}", os.MFD_CLOEXEC)
    try:
        os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        os.close(fd)
        raise RefusedError(f"no {nbytes} bytes of shared memory: {os.strerror(error.errno or 0)}") from None
    return fd


def open_memory_file(process: int, fd: int, token: str) -> int:
    """Open a memory file of another process of this machine. RefusedError if the process or the file is not here."""
    path = f"/proc/{process}/fd/{fd}"
    try:
        if os.readlink(path) == f"/memfd:{_NAME}-{token} (deleted)":
            return os.open(path, os.O_RDWR | os.O_CLOEXEC)
        reason = "another file is there"
    except OSError as error:
        reason = os.strerror(error.errno or 0)
    raise RefusedError(f"process {process}, which has the shared memory, cannot be reached from here: {reason}")


class SharedMemory:
    """All of a memory file, mapped; pinned for the accelerator ``pin_for``. Freed by the garbage collector.

    Forked processes have it too: a fork does not copy shared pages.
    """

    def __init__(self, fd: int, pin_for: Accelerator | None) -> None:
        try:
            mapping = mmap.mmap(fd, 0, flags=mmap.MAP_SHARED)
        except OSError as error:
            raise RefusedError(f"mapping shared memory: {os.strerror(error.errno or 0)}") from None
        self.view = memoryview(mapping)
        self.nbytes = len(mapping)
        if pin_for is not None:
            address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
            pin_for.pin(address, self.nbytes)
            unpin = weakref.finalize(self, _unpin, pin_for, address, mapping, os.getpid())
            unpin.atexit = False  # the end of the process frees it; CUDA may be gone before


def _unpin(accelerator: Accelerator, address: int, mapping: mmap.mmap, owner: int) -> None:
    """Unpin the memory, which is unmapped after that; in a forked process, which has no CUDA, do nothing."""
    if os.getpid() == owner:
        accelerator.unpin_unused(address)
