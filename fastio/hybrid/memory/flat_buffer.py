"""One long vector of host memory that tensors lie in, one behind the other."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterable
from typing import Any

import torch

from fastio.errors import TransferError
from fastio.hybrid.memory.device_memory import Memories
from fastio.memory.staging_buffers import PAGE, HostMemory
from fastio.offload.stores.store_places import unnamed

ALIGNMENT = 64  # bytes: a cache line, which no two tensors then share


def laid_out(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Where tensors of these bytes begin, one behind the other, and where the last one ends, on cache lines."""
    offsets, end = [], 0
    for nbytes in sizes:
        offsets.append(end)
        end += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return offsets, end


class HostVector:
    """Zeroed host memory; pinned where the memories say so. Each view has a storage of its own, and keeps it alive.

    ``folder``: the memory is a mapped file without a name there, and not pinned: the system writes it out when memory
    is short, and ``forget`` lets go of what is resident. Raises TransferError, which names the folder, and RefusedError
    where it is not given.
    """

    def __init__(self, nbytes: int, memories: Memories, folder: str | None = None) -> None:
        self._memories = memories
        self._mapped: mmap.mmap | None = None
        nbytes = max(PAGE, -(-nbytes // PAGE) * PAGE)
        if folder is not None and not memories.pinned:
            self._mapped = _mapped_file(folder, nbytes)
            self._memory: Any = self._mapped
            self._view = memoryview(self._mapped)
        else:
            with torch.cuda.device(memories.device) if memories.pinned else contextlib.nullcontext():
                self._memory = HostMemory(nbytes, memories.pinned)
            self._view = self._memory.view
        self.nbytes = nbytes

    def bytes(self, offset: int, nbytes: int) -> torch.Tensor:
        """Bytes as the host sees them: uint8 of shape ``(nbytes,)``."""
        return torch.frombuffer(self._view, dtype=torch.uint8, offset=offset, count=nbytes)

    def view(self, offset: int, like: torch.Tensor) -> torch.Tensor:
        """A tensor as the host sees it, with the dtype, shape and strides of ``like``, which is dense."""
        return shaped(self.bytes(offset, like.numel() * like.element_size()), like)

    def seen(self, offset: int, like: torch.Tensor) -> torch.Tensor:
        """The same tensor as compute sees it."""
        host = self.bytes(offset, like.numel() * like.element_size())
        return shaped(self._memories.seen(host, self._memory), like)

    def forget(self, start: int, stop: int) -> None:
        """Of a mapped file: let go of the resident pages that lie in ``[start, stop)``. Their bytes stay."""
        if self._mapped is not None:
            first, last = -(-start // PAGE) * PAGE, stop // PAGE * PAGE
            if last > first:
                self._mapped.madvise(mmap.MADV_DONTNEED, first, last - first)


def shaped(nbytes: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Bytes as a tensor with the dtype, shape and strides of ``like``."""
    return nbytes.view(like.dtype).as_strided(like.shape, like.stride())


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill their memory without gap or overlap, in whatever order."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _mapped_file(folder: str, nbytes: int) -> mmap.mmap:
    try:
        with unnamed(folder, os.O_RDWR) as fd:
            os.posix_fallocate(fd, 0, nbytes)  # a disk that is full says so now: later it would end the process
            return mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED)
    except OSError as error:
        operation = f"making a file of {nbytes} bytes for gradients"
        if error.errno == errno.ENOSPC:
            operation += " (make room there, or name another folder as optimizer_store)"
        raise TransferError(error.errno or errno.EIO, operation, folder) from None
