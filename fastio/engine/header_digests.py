"""Puts checksums of tensors into a file's header, which lies before them.

A file is written to twice: the header is written again when the tensors are in it, with the checksums of the bytes that
were written. A file object gets the header first: its checksums are computed in advance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from fastio._native import crc32
from fastio.engine.host_pieces import Part, host_pieces
from fastio.files.full_write import write_all
from fastio.formats.layout import Layout
from fastio.formats.small_reads import blocks_at


def write_after(layout: Layout, crcs: Mapping[int, int], path: str, fd: int) -> None:
    """Write the header again, with checksums, into the file that a layout was written to.

    ``crcs`` are the CRC-32s of what was written, by the parts' offsets. A SHA-256 is computed from memory, and if that
    was changed since it was written, from the file. TransferError if the system refuses.
    """
    parts = _parts(layout)
    for place in layout.digests:
        _put(layout, place.crc32, f"{crcs[place.offset]:08x}")
        if place.sha256 is not None:
            part = parts[place.offset]
            crc, sha = _hashed(host_pieces(part))
            if crc != crcs[place.offset]:
                _, sha = _hashed(blocks_at(path, fd, part.offset, part.nbytes))
            _put(layout, place.sha256, sha)
    write_all(path, fd, memoryview(layout.literal), 0)


def compute_before(layout: Layout) -> dict[int, int]:
    """Put the checksums of the memory as it is now into the header; return the CRC-32s by the parts' offsets."""
    parts = _parts(layout)
    crcs: dict[int, int] = {}
    for place in layout.digests:
        if place.sha256 is None:
            crc = 0
            for piece in host_pieces(parts[place.offset]):
                crc = crc32(piece, crc)
        else:
            crc, sha = _hashed(host_pieces(parts[place.offset]))
            _put(layout, place.sha256, sha)
        _put(layout, place.crc32, f"{crc:08x}")
        crcs[place.offset] = crc
    return crcs


def _parts(layout: Layout) -> dict[int, Part]:
    parts: list[Part] = [*layout.extents, *layout.strided]
    return {part.offset: part for part in parts}


def _put(layout: Layout, at: int, digits: str) -> None:
    layout.literal[at : at + len(digits)] = digits.encode()


def _hashed(pieces: Iterable[memoryview | bytes]) -> tuple[int, str]:
    """The CRC-32 and the SHA-256 of the same bytes, whatever becomes of the memory meanwhile."""
    crc, sha = 0, hashlib.sha256()
    for piece in pieces:
        copy = bytes(piece)
        crc = crc32(copy, crc)
        sha.update(copy)
    return crc, sha.hexdigest()
