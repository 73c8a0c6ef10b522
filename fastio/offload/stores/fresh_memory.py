"""Allocates memory for encoded and decoded payloads."""

from __future__ import annotations

import contextlib
import math
import mmap

import torch

from fastio._native import Mapping
from fastio.memory.load_buffers import bytes_of
from fastio.runtime.native_errors import NativeError
from fastio.sizes import exact_size

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
        mapping = Mapping(room)
    except NativeError:
        raise _no_memory(room) from None
    return bytes_of(mapping, 0, nbytes).view(dtype).view(shape)


def untouched(nbytes: int, begin: int, filled: int) -> torch.Tensor:
    """Return zeros on the CPU, uint8 of shape ``(nbytes,)``, of which ``filled`` bytes from ``begin`` will be written.

    Those begin a page, and a huge page where they are worth one. The other pages take no memory. MemoryError if the
    system refuses so much address space.
    """
    try:
        pages = mmap.mmap(-1, nbytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
    except OSError:
        raise _no_memory(nbytes) from None
    whole = torch.frombuffer(pages, dtype=torch.uint8)
    before = -(whole.data_ptr() + begin) % _HUGE_PAGE
    huge = filled - filled % _HUGE_PAGE + (_HUGE_PAGE if filled % _HUGE_PAGE >= _WORTH_ONE else 0)
    with contextlib.suppress(OSError):  # of a kernel without huge pages
        pages.madvise(mmap.MADV_NOHUGEPAGE)
        if huge:
            pages.madvise(mmap.MADV_HUGEPAGE, before + begin, min(huge, len(pages) - before - begin))
    return whole[before : before + nbytes]


def _no_memory(nbytes: int) -> MemoryError:
    return MemoryError(
        f"no {exact_size(nbytes)} of memory for a saved tensor: give Offload a smaller budget= or none, make the batch "
        f"smaller, or the memory limit larger"
    )
