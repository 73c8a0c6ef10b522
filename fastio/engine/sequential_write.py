"""Writes a layout from its first byte to its last: to file objects, pipes and devices."""

from __future__ import annotations

import io
from typing import Any

from fastio._native import crc32
from fastio.engine import header_digests
from fastio.engine.host_pieces import Part, host_pieces
from fastio.errors import ChecksumError
from fastio.files.full_write import WholeWrites
from fastio.formats.layout import Layout


def write(layout: Layout, f: Any, name: str) -> None:
    """Write the file of a layout to a file object, at its position; errors call it ``name``.

    ChecksumError if another thread changed a tensor after its checksum was written into the header.
    """
    crcs = header_digests.compute_before(layout)
    at, at_once = 0, _copies_at_once(f)
    parts: list[Part] = [*layout.extents, *layout.strided]
    for part in sorted(parts, key=lambda part: part.offset):
        expected, crc = crcs.get(part.offset), 0
        if part.offset > at:
            f.write(bytes(part.offset - at))
        for piece in host_pieces(part):
            data = piece if at_once and expected is None else bytes(piece)
            f.write(data)
            crc = crc if expected is None else crc32(data, crc)
        if expected not in (None, crc):
            raise _changed(layout, name, part.offset)
        at = part.offset + part.nbytes


def _changed(layout: Layout, name: str, offset: int) -> ChecksumError:
    tensor = next(place.name for place in layout.digests if place.offset == offset)
    return ChecksumError(
        name,
        tensor,
        "it was changed while it was written, after its CRC-32 was written into the header: the file is damaged; save "
        "again while no other thread changes it, or with checksums=False",
    )


def _copies_at_once(f: Any) -> bool:
    """Whether the memory may change once ``write`` returns. Other file objects may keep a reference to it."""
    inner = f.raw if type(f) in (WholeWrites, io.BufferedWriter, io.BufferedRandom) else f
    return type(inner) in (io.FileIO, io.BytesIO)
