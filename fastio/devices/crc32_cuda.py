"""CRC-32 of memory of a CUDA device, computed there: ``crc32.cu``, compiled at run time through CuPy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from fastio._native import crc32_combine
from fastio.devices.cupy_kernels import Kernels

_LEAST_PIECE = 16 << 10  # bytes; with shorter ones the tables that each block computes first would weigh more
_PIECES = 4096  # about as many warps: 31 for each multiprocessor of an H100. More would take time on the host.
_ROW = 128  # bytes that a warp loads at a time
_INVERTED = 0xFFFFFFFF

_KERNELS = Kernels("crc32", "fastio.devices", "crc32.cu")


def is_available() -> bool:
    """Return whether CuPy is installed and compiles the source for this device."""
    return _KERNELS.is_available()


def crc32_of_ranges(ranges: Sequence[tuple[int, int]], device: torch.device) -> list[int]:
    """Return the CRC-32 of each range of CUDA memory, (address, bytes), as ``zlib.crc32`` would.

    ``device`` is the one that holds them, with its index. Addresses need no alignment. One kernel runs for all ranges,
    on torch's current stream of the device, and this waits for it: work on other streams must have ended. Of the bytes
    none comes to the host: only 4 bytes for each piece of at least 16 KiB. Raises ToolUnavailableError without CuPy.
    """
    _KERNELS.require()
    piece = max(_LEAST_PIECE, -(-sum(nbytes for _, nbytes in ranges) // (_PIECES * _ROW)) * _ROW)
    counts = [-(-nbytes // piece) for _, nbytes in ranges]
    pieces = sum(counts)
    if not pieces:
        return [0] * len(ranges)
    table: list[int] = []
    before = 0
    for (address, nbytes), count in zip(ranges, counts, strict=True):
        table += address, nbytes, before
        before += count
    on_device = torch.tensor(table, dtype=torch.int64).to(device)
    found = torch.empty(pieces, dtype=torch.int32, device=device)
    _KERNELS.launch("crc32_pieces", pieces, device, on_device, len(ranges), piece, pieces, found)
    remainders = iter(found.cpu().numpy().view(np.uint32).tolist())
    return [_combine(remainders, nbytes, piece) for _, nbytes in ranges]


def _combine(remainders: Iterator[int], nbytes: int, piece: int) -> int:
    """Return the CRC-32 of a range from the remainders of its pieces, taken from the iterator."""
    whole = 0
    for at in range(0, nbytes, piece):
        whole = crc32_combine(whole, next(remainders), min(piece, nbytes - at))
    return crc32_combine(_INVERTED, whole, nbytes) ^ _INVERTED
