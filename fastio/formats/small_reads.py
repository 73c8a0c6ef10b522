"""Reads headers and small records, and raises an error for every short or failed read."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from fastio.errors import CorruptFileError, TransferError
from fastio.volumes import views

_BLOCK = 512 << 10
_MOST = 1 << 30  # bytes that are read by one system call


def head(path: str, fd: int, size: int, nbytes: int) -> bytes:
    """Return the first ``nbytes`` bytes of a file, or all of them if its ``size`` is less.

    CorruptFileError if the file ends earlier, TransferError if the read fails.
    """
    found = _read(path, fd, 0, nbytes)
    if len(found) < min(nbytes, size):
        raise _cut_short(path, None, len(found))
    return found


def read_at(path: str, fd: int, offset: int, nbytes: int, record: str | None = None) -> bytes:
    """Return exactly ``nbytes`` bytes at ``offset``; they belong to ``record`` or, if it is None, to the header.

    CorruptFileError if the file ends earlier, TransferError if the read fails.
    """
    found = _read(path, fd, offset, nbytes)
    if len(found) < nbytes:
        raise _cut_short(path, record, offset + len(found))
    return found


def blocks_at(path: str, fd: int, offset: int, nbytes: int) -> Iterator[bytes]:
    """Yield ``nbytes`` bytes from ``offset`` on, in blocks that stay in the processor's cache. Raises as read_at."""
    end = offset + nbytes
    for at in range(offset, end, _BLOCK):
        yield read_at(path, fd, at, min(_BLOCK, end - at))


def _read(path: str, fd: int, offset: int, nbytes: int) -> bytes:
    """Return ``nbytes`` bytes, or fewer at the end of the file."""
    view = views.of(fd)
    if view is not None:
        return view.read(offset, nbytes)
    pieces = []
    while nbytes > 0:
        try:
            piece = os.pread(fd, min(nbytes, _MOST), offset)
        except OSError as error:
            cure = " of a pipe (load io.BytesIO of all that it gives)" if error.errno == errno.ESPIPE else ""
            if error.errno == errno.EIO and os.fstat(fd).st_size == 0:  # an empty file on a disk is not read
                cure = " of the system's own file (name one on a disk)"
            raise TransferError(error.errno or 0, f"read{cure}", path, offset) from error
        if not piece:
            break
        pieces.append(piece)
        offset += len(piece)
        nbytes -= len(piece)
    return b"".join(pieces)


def _cut_short(path: str, record: str | None, offset: int) -> CorruptFileError:
    where = "" if record is not None else ", in the middle of its header"
    return CorruptFileError(path, record, f"the file ends at byte {offset}{where}: it was cut short")
