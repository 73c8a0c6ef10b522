"""One long buffer of host memory with many tensors in it, one after the other."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Iterable
from typing import Any

import torch

from fastio.errors import TransferError
from fastio.hybrid.memory.device_memory import DeviceMemory
from fastio.hybrid.memory.ranks import OneRank, Ranks
from fastio.memory.staging_buffers import PAGE
from fastio.offload.stores.store_places import open_unnamed
from fastio.sizes import exact_size

ALIGNMENT = 64  # bytes: one cache line; no two tensors share one


def lay_out(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Return the offsets of tensors of these sizes, aligned to cache lines, and the end of the last one."""
    offsets, end = [], 0
    for nbytes in sizes:
        offsets.append(end)
        end += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return offsets, end


class FlatBuffer:
    """Zeroed host memory, pinned if the device memory requires it. Each view has its own storage and keeps it alive.

    ``folder``: use a mapped, unnamed file there, not pinned: the system writes it out when memory is short, and
    ``forget`` drops resident pages. ``ranks``: those that make this buffer; several share its memory.
    Raises TransferError, which names the folder, and RefusedError if memory is refused.
    """

    def __init__(self, nbytes: int, device_memory: DeviceMemory, ranks: Ranks, folder: str | None = None) -> None:
        self._device_memory = device_memory
        self._mapped: mmap.mmap | None = None
        nbytes = max(PAGE, -(-nbytes // PAGE) * PAGE)
        if folder is not None and device_memory.pin_for is None:
            self._mapped = _mapped_file(folder, nbytes)
            self._memory: Any = self._mapped
            self._view = memoryview(self._mapped)
        else:
            pin_for = device_memory.pin_for
            with contextlib.nullcontext() if pin_for is None else pin_for.on(device_memory.device):
                self._memory = ranks.memory(nbytes, pin_for)
            self._view = self._memory.view
        self.nbytes = nbytes

    def own_copy(self) -> FlatBuffer:
        """Return a copy that no other rank has."""
        own = FlatBuffer(self.nbytes, self._device_memory, OneRank())
        own.bytes(0, own.nbytes).copy_(self.bytes(0, own.nbytes))
        return own

    def bytes(self, offset: int, nbytes: int) -> torch.Tensor:
        """Return bytes as the host sees them: uint8 of shape ``(nbytes,)``."""
        return torch.frombuffer(self._view, dtype=torch.uint8, offset=offset, count=nbytes)

    def view(self, offset: int, like: torch.Tensor) -> torch.Tensor:
        """Return a tensor as the host sees it, with the dtype, shape and strides of the dense tensor ``like``."""
        return shaped(self.bytes(offset, like.numel() * like.element_size()), like)

    def device_view(self, offset: int, like: torch.Tensor) -> torch.Tensor:
        """Return the same tensor as compute sees it."""
        host = self.bytes(offset, like.numel() * like.element_size())
        return shaped(self._device_memory.device_view(host, self._memory), like)

    def forget(self, start: int, stop: int) -> None:
        """Drop the resident pages of a mapped file that lie in ``[start, stop)``. Their bytes are kept."""
        if self._mapped is not None:
            first, last = -(-start // PAGE) * PAGE, stop // PAGE * PAGE
            if last > first:
                self._mapped.madvise(mmap.MADV_DONTNEED, first, last - first)


def shaped(nbytes: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return bytes as a tensor with the dtype, shape and strides of ``like``."""
    return nbytes.view(like.dtype).as_strided(like.shape, like.stride())


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the elements fill their memory without gap or overlap, in any order."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _mapped_file(folder: str, nbytes: int) -> mmap.mmap:
    try:
        with open_unnamed(folder, os.O_RDWR) as fd:
            os.posix_fallocate(fd, 0, nbytes)  # a full disk raises here; later it would kill the process
            return mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED)
    except OSError as error:
        operation = f"making a file of {exact_size(nbytes)} for gradients"
        if error.errno == errno.ENOSPC:
            operation += " (optimizer_store= names its folder)"
        raise TransferError(error.errno or errno.EIO, operation, folder) from None
