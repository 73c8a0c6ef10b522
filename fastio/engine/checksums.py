"""CRC-32 of extents, for transports that do not compute it while they move the bytes."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Sequence

import torch

from fastio import _native
from fastio.formats.layout import Layout, address_of
from fastio.memory.raw_memory import storage_bytes
from fastio.transports.transport import Extent

_DEVICE_PIECE = 16 << 20  # bytes copied to the host at a time


def of_extent(extent: Extent) -> int:
    """The CRC-32 of an extent's memory, on any device."""
    if extent.device == "cpu":
        return _native.crc32_at(extent.address, extent.nbytes)
    storage: torch.UntypedStorage = extent.owner
    view = storage_bytes(storage)
    start = extent.address - storage.data_ptr()
    value = 0
    for at in range(start, start + extent.nbytes, _DEVICE_PIECE):
        piece = view[at : min(at + _DEVICE_PIECE, start + extent.nbytes)].cpu()
        value = _native.crc32_at(piece.data_ptr(), piece.numel(), value)
    return value


def of_extents(extents: Sequence[Extent]) -> list[int]:
    """One CRC-32 per extent, 0 where none is asked for."""
    return [of_extent(extent) if extent.checksum else 0 for extent in extents]


def seal(layout: Layout) -> list[int]:
    """Compute the CRCs of a layout's storages, and write them into its zip headers. Returns one for each extent."""
    values = of_extents(layout.extents)
    patch(layout, values)
    return values


def patch(layout: Layout, values: Sequence[int]) -> None:
    """Write CRCs, one for each extent, into the zip headers of a layout."""
    offsets = [extent.offset for extent in layout.extents]
    base = address_of(layout.literal)
    for offset, index in layout.patches:
        literal = layout.extents[bisect.bisect_right(offsets, offset) - 1]
        at = literal.address - base + (offset - literal.offset)
        layout.literal[at : at + 4] = values[index].to_bytes(4, "little")


def of_file(layout: Layout, values: Sequence[int]) -> int:
    """The CRC-32 of the whole file that a layout makes, with the zeros between extents.

    ``values`` has one CRC for each extent that asks for one; they are written into the zip headers too.
    """
    patch(layout, values)
    whole = end = 0
    for extent, value in zip(layout.extents, values, strict=True):
        own = value if extent.checksum else of_extent(extent)
        whole = _native.crc32_combine(whole, _of_zeros(extent.offset - end), extent.offset - end)
        whole = _native.crc32_combine(whole, own, extent.nbytes)
        end = extent.offset + extent.nbytes
    return _native.crc32_combine(whole, _of_zeros(layout.size - end), layout.size - end)


@functools.lru_cache(maxsize=8192)
def _of_zeros(nbytes: int) -> int:
    return _native.crc32(bytes(nbytes))
