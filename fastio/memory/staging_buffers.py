"""Staging memory: page-aligned buffers in a bounded ring, leased by whoever moves bytes. All sizes are bytes.

Buffers are made at the first lease that needs them and kept: making one costs page faults and, where it is pinned,
a registration with the driver. Pinned memory is registered at its exact size (``cudaHostRegister``), because torch's
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
    """Anonymous host memory that starts on a page, private to this process; pinned for CUDA where asked.

    Raises RefusedError where the system or the driver does not give it. ``close`` gives it back.
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
        """Unpin and unmap. Nobody may use the memory any more."""
        if self.pinned:
            self.pinned = False
            _check(_cudart().cudaHostUnregister(self.address), "unpinning")
        self.view.release()
        self._mapping.close()


class Lease:
    """A buffer of a ring while somebody has it. ``release`` gives it back, once all use of it is over."""

    __slots__ = ("_memory", "_ring", "address", "nbytes", "view")

    def __init__(self, ring: StagingRing, memory: HostMemory) -> None:
        self._ring: StagingRing | None = ring
        self._memory = memory
        self.address = memory.address
        self.nbytes = memory.nbytes
        self.view = memory.view

    def release(self) -> None:
        """Give the buffer back. A second call is an error of the caller: somebody else may have the buffer by then."""
        ring, self._ring = self._ring, None
        if ring is None:
            raise RuntimeError("this lease was released already")
        ring._take_back(self._memory)


class StagingRing:
    """At most ``count`` buffers of ``nbytes`` each, for all threads together.

    A thread that waits for a buffer should hold none: then those who hold some can always go on, and give them back.
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
        """How many buffers are out."""
        with self._changed:
            return self._made - len(self._free)

    def lease(self, timeout: float = 0.0) -> Lease | None:
        """A free buffer, waiting up to ``timeout`` seconds for one; None if none came free."""
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
        """Give the memory of free buffers back to the system."""
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
    """Around copies between a GPU and pinned memory: what torch raises becomes RefusedError."""
    try:
        yield
    except RuntimeError as error:
        raise RefusedError(f"a copy between a GPU and pinned memory failed: {error}") from error


def _cudart() -> Any:
    import torch

    return torch.cuda.cudart()


def _check(result: Any, doing: str) -> None:
    if int(result) != 0:
        _forget_error()
        raise RefusedError(f"{doing} failed: CUDA error {int(result)}")


def _forget_error() -> None:
    """CUDA keeps a call's error for the thread, and torch would raise it after the next kernel, whosever that is.

    torch offers no cudaGetLastError: so that next kernel is one of ours.
    """
    import torch

    if torch.cuda.is_initialized():
        with contextlib.suppress(RuntimeError):
            torch.empty(1, device="cuda").fill_(0)
