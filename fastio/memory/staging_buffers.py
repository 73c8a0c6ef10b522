"""Staging memory: page-aligned buffers in a bounded ring, leased for transfers. All sizes are bytes.

A buffer is created when a lease first needs it, and kept: creation costs page faults and, if it is pinned, a
registration with the driver.
"""

from __future__ import annotations

import os
import threading
import time

from fastio._native import Mapping, Slice
from fastio.devices import Accelerator
from fastio.errors import RefusedError
from fastio.memory.memory_file import pin
from fastio.runtime.native_errors import NativeError

PAGE = 4096


class HostMemory:
    """Anonymous, page-aligned host memory, in huge pages if it is large; pinned for the accelerator ``pin_for``.

    ``close`` frees it. So does the garbage collector, except what tensors on ``view`` still use. Pinned memory is
    unpinned before it is unmapped, and it is unpinned after all work of all devices.

    Forked processes do not have the memory (``MADV_DONTFORK``), because a fork copies pinned pages at once. There
    ``close`` does nothing, and touching the memory is SIGSEGV. So the owner of a HostMemory must refuse to work in a
    forked process, or be unable to: CUDA does not work there, nor do a Checkpointer and a BlockStore. ``inherited``:
    forked processes get a copy. It is for data of CPU tensors that a user can reach, as DataLoader workers may read
    them; it cannot be pinned.

    Raises RefusedError if the system or the driver refuses it.
    """

    def __init__(self, nbytes: int, pin_for: Accelerator | None = None, inherited: bool = False) -> None:
        if pin_for is not None and inherited:
            raise ValueError("pinned memory cannot be inherited: a fork would copy all of it")
        try:
            mapping = Mapping(nbytes, reserved=True)
            if not inherited:
                mapping.keep_from_children()
        except NativeError as error:
            raise RefusedError(f"no {nbytes} bytes of staging memory: {os.strerror(error.args[1])}") from None
        self.nbytes = nbytes
        self.address = mapping.address
        self.view = memoryview(Slice(mapping, 0, nbytes))
        self.pinned = False
        if pin_for is not None:
            mapping.populate()  # the driver would fault the pages in with one thread
            self._unpin = pin(pin_for, mapping, self.address, nbytes, self)
            self.pinned = True

    def close(self) -> None:
        """Unpin and unmap. The memory must not be in use."""
        if self.pinned:
            self.pinned = False
            self._unpin()
        self.view.release()


class Lease:
    """A leased buffer of a ring. Call ``release`` once all use of it is over."""

    __slots__ = ("_memory", "_ring", "address", "nbytes", "view")

    def __init__(self, ring: StagingRing, memory: HostMemory) -> None:
        self._ring: StagingRing | None = ring
        self._memory = memory
        self.address = memory.address
        self.nbytes = memory.nbytes
        self.view = memory.view

    def release(self) -> None:
        """Return the buffer to the ring. A second call raises RuntimeError: the buffer may be leased again by then."""
        ring, self._ring = self._ring, None
        if ring is None:
            raise RuntimeError("this lease was released already")
        ring._take_back(self._memory)


class StagingRing:
    """At most ``count`` buffers of ``nbytes`` each, shared by all threads.

    A thread that waits for a buffer should hold none: threads that hold buffers can then always continue, and release
    them.
    """

    def __init__(self, count: int, nbytes: int, pin_for: Accelerator | None = None) -> None:
        if count < 1 or nbytes < PAGE or nbytes % PAGE:
            raise ValueError(f"a ring of {count} buffers of {nbytes} bytes: expected one or more, of whole pages")
        self.count = count
        self.nbytes = nbytes
        self._pin_for = pin_for
        self._made = 0
        self._free: list[HostMemory] = []
        self._changed = threading.Condition()

    @property
    def made(self) -> int:
        """How many buffers have memory, leased or kept."""
        with self._changed:
            return self._made

    @property
    def leased(self) -> int:
        """How many buffers are leased."""
        with self._changed:
            return self._made - len(self._free)

    def lease(self, timeout: float = 0.0) -> Lease | None:
        """Lease a buffer, waiting up to ``timeout`` seconds for one; returns None if none became free."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                if self._free:
                    return Lease(self, self._free.pop())
                if self._made < self.count:
                    memory = HostMemory(self.nbytes, self._pin_for)
                    self._made += 1
                    return Lease(self, memory)
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not self._changed.wait(remaining):
                    return None

    def lease_some(self, wanted: int, timeout: float = 0.0) -> list[Lease]:
        """Lease at least one buffer, as :meth:`lease` does, and up to ``wanted`` if they are free.

        Returns an empty list if none became free. RefusedError if the memory of one is refused.
        """
        leases: list[Lease] = []
        try:
            while len(leases) < wanted:
                lease = self.lease(0.0 if leases else timeout)
                if lease is None:
                    break
                leases.append(lease)
        except BaseException:
            for lease in leases:
                lease.release()
            raise
        return leases

    def trim(self) -> None:
        """Free the memory of all buffers that are not leased."""
        with self._changed:
            memories, self._free = self._free, []
            self._made -= len(memories)
        for memory in memories:
            memory.close()

    def _take_back(self, memory: HostMemory) -> None:
        with self._changed:
            self._free.append(memory)
            self._changed.notify()
