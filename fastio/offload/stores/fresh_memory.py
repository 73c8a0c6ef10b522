"""Fresh memory for payloads and for what comes out of them."""

from __future__ import annotations

import contextlib
import math
import mmap

import torch

from fastio import _native
from fastio.memory.load_buffers import bytes_of
from fastio.runtime.native_errors import NativeError

# Touching new memory for the first time is what a codec's time goes to: 2.5 GB/s by pages of 4 KiB, 40 by huge ones,
# where packing and unpacking run at 20 and more. glibc has warm memory at times, but often none of a MiB and more.
_HUGE_PAGE = 2 << 20
_WORTH_ONE = _HUGE_PAGE // 2  # bytes: what fills less of a huge page would waste too much of it

_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0)  # since Python 3.13


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """As ``torch.empty``; on the CPU in huge pages, from 1 MiB on, which go back to the system with their storage.

    At most half of the last huge page is wasted. MemoryError where there is not so much.
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
    """Zeros on the CPU, uint8 of shape ``(nbytes,)``, of which ``filled`` bytes in a row are to be written.

    The other pages take no memory. MemoryError where the system does not give so many addresses.
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
