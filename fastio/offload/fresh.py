"""Fresh memory for payloads and for what comes out of them."""

from __future__ import annotations

import math

import torch

from fastio import _native
from fastio.landing import bytes_of
from fastio.native_errors import NativeError

# Touching new memory for the first time is what a codec's time goes to: 2.5 GB/s by pages of 4 KiB, 40 by huge ones,
# where packing and unpacking run at 20 and more. glibc has warm memory at times, but often none of a MiB and more.
_HUGE_PAGE = 2 << 20
_WORTH_ONE = _HUGE_PAGE // 2  # bytes: what fills less of a huge page would waste too much of it


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
        raise MemoryError(f"no {room} bytes of memory: make the batch smaller, or the memory limit larger") from None
    return bytes_of(mapping, 0, nbytes).view(dtype).view(shape)
