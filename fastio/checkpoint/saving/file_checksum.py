"""The CRC-32 of a whole file, from those of the storages in it."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from fastio._native import crc32, crc32_combine
from fastio.engine import checksums
from fastio.formats.layout import Layout


def of_file(layout: Layout, values: Sequence[int]) -> int:
    """The CRC-32 of the whole file that a layout makes, with the zeros between extents.

    ``values`` has one CRC for each extent that asks for one; they are written into the zip headers too.
    """
    checksums.patch(layout, values)
    whole = end = 0
    for extent, value in zip(layout.extents, values, strict=True):
        own = value if extent.checksum else checksums.of_part(extent)
        whole = crc32_combine(whole, _of_zeros(extent.offset - end), extent.offset - end)
        whole = crc32_combine(whole, own, extent.nbytes)
        end = extent.offset + extent.nbytes
    return crc32_combine(whole, _of_zeros(layout.size - end), layout.size - end)


@functools.lru_cache(maxsize=8192)
def _of_zeros(nbytes: int) -> int:
    return crc32(bytes(nbytes))
