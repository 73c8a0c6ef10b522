"""Fresh memory for payloads and for what comes out of them."""

from __future__ import annotations

import math

import torch

from fastio import _native
from fastio.landing import bytes_of

# glibc hands out larger blocks as new pages each time and takes them back at once. Touching those for the first time,
# 4 KiB at a time, costs several times what packing does: 2.4 GB/s against 10 with huge pages.
_MAPPED = 32 << 20


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """As ``torch.empty``; large ones on the CPU in huge pages, which go back to the system with their storage."""
    nbytes = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or nbytes < _MAPPED:
        return torch.empty(shape, dtype=dtype, device=device)
    return bytes_of(_native.Mapping(nbytes), 0, nbytes).view(dtype).view(shape)
