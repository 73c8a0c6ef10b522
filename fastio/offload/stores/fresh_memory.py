"""Allocates memory for encoded and decoded payloads."""

from __future__ import annotations

import contextlib
import math
import mmap

import torch

from fastio import _native
from fastio.memory.load_buffers import bytes_of
from fastio.runtime.native_errors import NativeError

# First touches of new memory dominate a codec's time: 2.5 GB/s with pages of 4 KiB, 40 GB/s with huge pages, while
# packing and unpacking run at 20 GB/s and more. glibc often has no touched memory for blocks of a MiB and more.
_HUGE_PAGE = 2 << 20
_WORTH_ONE = _HUGE_PAGE // 2  # bytes: less would waste too much of a huge page

_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0)  # since Python 3.13


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Like ``torch.empty``; on the CPU, from 1 MiB on, in huge pages that are unmapped with their storage.

    Wastes at most half of the last huge page. MemoryError if there is not enough memory.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or nbytes < _WORTH_ONE:
        return torch.empty(shape, dtype=dtype, device=device)
    rest = nbytes % _HUGE_PAGE
    room = nbytes if rest < _WORTH_ONE else nbytes - rest + _HUGE_PAGE
    try:
        mapping = _native.Mapping(room)
    except NativeError:
        raise _no_memory(room) from None
    return bytes_of(mapping, 0, nbytes).view(dtype).view(shape)


def untouched(nbytes: int, filled: int) -> torch.Tensor:
    """Return zeros on the CPU, uint8 of shape ``(nbytes,)``, of which one range of ``filled`` bytes will be written.

    The other pages take no memory. MemoryError if the system refuses so much address space.
    """
    try:
        pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
    except OSError:
        raise _no_memory(nbytes) from None
    if filled < _WORTH_ONE:
        with contextlib.suppress(OSError):  # of a kernel without huge pages
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(pages, dtype=torch.uint8)


def _no_memory(nbytes: int) -> MemoryError:
    return MemoryError(f"no {nbytes} bytes of memory: make the batch smaller, or the memory limit larger")
