"""Memory for a copy of a state that another process can map, and that outlives this one there."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

from fastio.devices import Accelerator
from fastio.errors import TransferError
from fastio.memory.memory_file import address_of, new_memory_file, pin


class SharedStaging:
    """Anonymous shared memory (memfd) of ``nbytes``; pinned for the accelerator ``pin_for``.

    ``fd`` is its file, from which another process maps it: the memory lives as long as one of them has it. All of it is
    reserved: TransferError if there is not so much. ``close`` frees it, also where it is still mapped; so does the
    garbage collector, where nobody has it mapped.
    """

    def __init__(self, nbytes: int, pin_for: Accelerator | None = None) -> None:
        self.nbytes = nbytes
        self._process = os.getpid()
        self.fd = _memory_file(nbytes)
        self._closing = weakref.finalize(self, os.close, self.fd)
        self._closing.atexit = False
        self._mapping = map_file(self.fd, nbytes)
        _all.add(self)
        self._mapping.madvise(mmap.MADV_DONTFORK)
        self.address = address_of(self._mapping)
        self.pinned = pin_for is not None
        if pin_for is not None:
            self._unpinning = pin(pin_for, self._mapping, self.address, nbytes, self)

    def close(self) -> None:
        """Unpin the memory and free it. Nothing may use it any more, in any process."""
        if self.pinned:
            self.pinned = False
            self._unpinning()
        if self._closing.alive and os.getpid() == self._process:  # a forked process has the descriptor, too
            os.ftruncate(self.fd, 0)
        self._closing()


class SharedMappings:
    """Memory of another process's :class:`SharedStaging`, mapped here for as long as it is not freed there."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[int, mmap.mmap]] = {}  # by inode, with descriptors, which keep the number taken

    def address(self, fd: int, nbytes: int) -> int:
        """Return the address of a memory file. TransferError if the system refuses to map it."""
        self._drop_freed()
        inode = os.fstat(fd).st_ino
        if inode not in self._held:
            mapping = map_file(fd, nbytes)
            self._held[inode] = os.dup(fd), mapping
        return address_of(self._held[inode][1])

    def _drop_freed(self) -> None:
        for inode, (fd, _) in list(self._held.items()):
            if not os.fstat(fd).st_size:
                del self._held[inode]
                os.close(fd)


def map_file(fd: int, nbytes: int) -> mmap.mmap:
    """Map a memory file. TransferError if the system refuses."""
    try:
        return mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    except OSError as error:
        raise TransferError(error.errno or 0, "mapping the copy of a state", "shared memory") from error


def _memory_file(nbytes: int) -> int:
    try:
        return new_memory_file("fastio-checkpoint", nbytes)
    except OSError as error:
        raise TransferError(error.errno or 0, f"reserving {nbytes} bytes for the copy", "shared memory") from error


_all: weakref.WeakSet[SharedStaging] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # A child does not have this memory, and may have its own at the address: it must never unmap it, not even at exit.
    for staging in list(_all):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(staging._mapping))


os.register_at_fork(after_in_child=_after_fork_in_child)
