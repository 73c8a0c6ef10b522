"""Host memory that several processes of a machine share."""

from __future__ import annotations

import mmap
import os

from fastio.devices import Accelerator
from fastio.errors import RefusedError
from fastio.memory.memory_file import address_of, new_memory_file, pin

_NAME = "fastio-hybrid"


def memory_file(nbytes: int, token: str) -> int:
    """Return the descriptor of a new memory file, whose bytes are reserved. RefusedError if there are too few."""
    try:
        return new_memory_file(f"{_NAME}-{token}", nbytes)
    except OSError as error:
        raise RefusedError(f"no {nbytes} bytes of shared memory: {os.strerror(error.errno or 0)}") from None


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
            pin(pin_for, mapping, address_of(mapping), self.nbytes, self)
