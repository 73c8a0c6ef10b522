"""Puts checksums of tensors into a file's header, which lies before them.

A file is written to twice: the header is written again when the tensors are in it, with the checksums of the bytes that
were written. A file object gets the header first: its checksums are computed in advance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from fastio._native import crc32
from fastio.engine.host_pieces import host_pieces
from fastio.formats.layout import DigestPlace, Layout
from fastio.formats.small_reads import blocks_at
from fastio.volumes.views import write_all


def write_after(layout: Layout, crcs: Mapping[int, int], path: str, fd: int) -> None:
    """Write the header again, with checksums, into the file that a layout was written to.

    ``crcs`` are the CRC-32s of what was written, by the parts' offsets. A SHA-256 is computed from memory, and if that
    was changed since it was written, from the file. TransferError if the system refuses.
    """
    parts = {part.offset: part for part in layout.parts}
    for place in layout.digests:
        crc, sha = crcs[place.offset], ""
        if place.sha256 is not None:
            part = parts[place.offset]
            found, sha = _digests(host_pieces(part), True)
            if found != crc:
                _, sha = _digests(blocks_at(path, fd, part.offset, part.nbytes), True)
        _put(layout, place, crc, sha)
    write_all(path, fd, memoryview(layout.literal), 0)


def compute_before(layout: Layout) -> dict[int, int]:
    """Put the checksums of the memory as it is now into the header; return the CRC-32s by the parts' offsets."""
    parts = {part.offset: part for part in layout.parts}
    crcs: dict[int, int] = {}
    for place in layout.digests:
        crcs[place.offset], sha = _digests(host_pieces(parts[place.offset]), place.sha256 is not None)
        _put(layout, place, crcs[place.offset], sha)
    return crcs


def _put(layout: Layout, place: DigestPlace, crc: int, sha: str) -> None:
    layout.literal[place.crc32 : place.crc32 + 8] = f"{crc:08x}".encode()
    if place.sha256 is not None:
        layout.literal[place.sha256 : place.sha256 + len(sha)] = sha.encode()


def _digests(pieces: Iterable[memoryview | bytes], hashes: bool) -> tuple[int, str]:
    """The CRC-32 and, if wanted, the SHA-256 of the same bytes, whatever becomes of the memory meanwhile."""
    crc, sha = 0, hashlib.sha256()
    for piece in pieces:
        data = bytes(piece) if hashes else piece
        crc = crc32(data, crc)
        if hashes:
            sha.update(data)
    return crc, sha.hexdigest()
