"""Staging memory: page-aligned buffers in a bounded ring, leased for transfers. All sizes are bytes.

A buffer is created when a lease first needs it, and kept: creation costs page faults and, if it is pinned, a
registration with the driver. Pinned memory is registered at its exact size (``cudaHostRegister``), because torch's
caching allocator of pinned memory rounds up to powers of two.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading
import time
from collections.abc import Iterator
from typing import Any

from fastio.errors import RefusedError

PAGE = 4096
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every device, not only for the current one


class HostMemory:
    """Anonymous, private, page-aligned host memory; with ``pin``, pinned for CUDA. ``close`` frees it.

    Raises RefusedError if the system or the driver refuses it.
    """

    def __init__(self, nbytes: int, pin: bool = False) -> None:
        try:
            self._mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise RefusedError(f"no {nbytes} bytes of staging memory: {error.strerror}") from error
        self.nbytes = nbytes
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        self.view = memoryview(self._mapping)
        self.pinned = False
        if pin:
            _check(_cudart().cudaHostRegister(self.address, nbytes, _PORTABLE), f"pinning {nbytes} bytes")
            self.pinned = True

    def close(self) -> None:
        """Unpin and unmap. The memory must not be in use."""
        if self.pinned:
            self.pinned = False
            _check(_cudart().cudaHostUnregister(self.address), "unpinning")
        self.view.release()
        self._mapping.close()


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

    def __init__(self, count: int, nbytes: int, pin: bool = False) -> None:
        if count < 1 or nbytes < PAGE or nbytes % PAGE:
            raise ValueError(f"a ring of {count} buffers of {nbytes} bytes: expected one or more, of whole pages")
        self.count = count
        self.nbytes = nbytes
        self._pin = pin
        self._made = 0
        self._free: list[HostMemory] = []
        self._changed = threading.Condition()

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
                    memory = HostMemory(self.nbytes, self._pin)
                    self._made += 1
                    return Lease(self, memory)
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not self._changed.wait(remaining):
                    return None

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


@contextlib.contextmanager
def copy_errors() -> Iterator[None]:
    """Around copies between a GPU and pinned memory: torch's errors become RefusedError."""
    try:
        yield
    except RuntimeError as error:
        raise RefusedError(f"a copy between a GPU and pinned memory failed: {error}") from error


def _cudart() -> Any:
    import torch

    return torch.cuda.cudart()


def _check(result: Any, doing: str) -> None:
    if int(result) != 0:
        _clear_cuda_error()
        raise RefusedError(f"{doing} failed: CUDA error {int(result)}")


def _clear_cuda_error() -> None:
    """Clear CUDA's last error of this thread, which torch would raise after the next, unrelated kernel.

    torch has no cudaGetLastError: so launch a kernel here that takes the error.
    """
    import torch

    if torch.cuda.is_initialized():
        with contextlib.suppress(RuntimeError):
            torch.empty(1, device="cuda").fill_(0)
