"""Writes a layout from its first byte to its last: to file objects, pipes and devices."""

from __future__ import annotations

import errno
import io
import os
from typing import Any

from fastio._native import crc32
from fastio.engine import header_digests
from fastio.engine.contiguous_chunks import Part, host_pieces
from fastio.errors import ChecksumError, TransferError
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
    inner = f.raw if type(f) in (_Whole, io.BufferedWriter, io.BufferedRandom) else f
    return type(inner) in (io.FileIO, io.BytesIO)


def whole(f: Any, name: str) -> Any:
    """``f``, or a wrapper of it whose ``write`` writes everything or raises TransferError.

    A raw file may write less, and torch does not check. Other file objects write everything.
    """
    # The file objects of tempfile hold the raw file in `file`.
    return _Whole(f, name) if isinstance(f, io.RawIOBase) or isinstance(getattr(f, "file", None), io.RawIOBase) else f


class _Whole:
    """A raw file object whose ``write`` writes everything. All other attributes are the file's."""

    def __init__(self, raw: Any, name: str) -> None:
        self.raw = raw
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.raw, attribute)

    def write(self, data: Any) -> int:
        rest = memoryview(data).cast("B")
        nbytes = len(rest)
        while rest:
            try:
                count = self.raw.write(rest)
            except OSError as error:
                if error.errno is None:  # raised by the program's own Python class
                    raise
                raise TransferError(error.errno, f"write of {len(rest)} bytes", self._name) from error
            if count is None and self._is_blocking():
                break  # a Python class whose write returns nothing
            if not count:
                number = errno.EAGAIN if count is None else errno.EIO
                raise TransferError(number, f"write of {len(rest)} bytes to a raw file object", self._name)
            rest = rest[count:]
        return nbytes

    def _is_blocking(self) -> bool:
        try:
            return os.get_blocking(self.raw.fileno())
        except (OSError, ValueError):
            return True
