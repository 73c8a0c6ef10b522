"""Small reads of headers, each one checked."""

from __future__ import annotations

import errno
import os

from fastio.errors import CorruptFileError, TransferError

_MOST = 1 << 30  # bytes that one system call reads at most


def head(path: str, fd: int, size: int, nbytes: int) -> bytes:
    """The first ``nbytes`` bytes of a file, or all that it has where its ``size`` is less.

    CorruptFileError if it ends before, TransferError if the read fails.
    """
    found = _read(path, fd, 0, nbytes)
    if len(found) < min(nbytes, size):
        raise _cut_short(path, None, len(found))
    return found


def read_at(path: str, fd: int, offset: int, nbytes: int, record: str | None = None) -> bytes:
    """Exactly ``nbytes`` bytes at ``offset``, which belong to ``record`` or, where there is none, to the header.

    CorruptFileError if the file ends before, TransferError if the read fails.
    """
    found = _read(path, fd, offset, nbytes)
    if len(found) < nbytes:
        raise _cut_short(path, record, offset + len(found))
    return found


def _read(path: str, fd: int, offset: int, nbytes: int) -> bytes:
    """``nbytes`` bytes, or as many as there are."""
    pieces = []
    while nbytes > 0:
        try:
            piece = os.pread(fd, min(nbytes, _MOST), offset)
        except OSError as error:
            cure = " of a pipe (load io.BytesIO of all that it gives)" if error.errno == errno.ESPIPE else ""
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
