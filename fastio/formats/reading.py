"""Small reads of headers, each one checked."""

from __future__ import annotations

import os

from fastio.errors import CorruptFileError, TransferError

_MOST = 1 << 30  # bytes that one system call reads at most


def head(path: str, fd: int, nbytes: int) -> bytes:
    """The first ``nbytes`` bytes of a file, or as many as it has. TransferError if the read fails."""
    try:
        return os.pread(fd, nbytes, 0)
    except OSError as error:
        raise TransferError(error.errno or 0, "read", path, 0) from error


def read_at(path: str, fd: int, offset: int, nbytes: int, record: str | None = None) -> bytes:
    """Exactly ``nbytes`` bytes at ``offset``, which belong to ``record`` or, where there is none, to the header.

    CorruptFileError if the file ends before, TransferError if the read fails.
    """
    pieces = []
    while nbytes > 0:
        try:
            piece = os.pread(fd, min(nbytes, _MOST), offset)
        except OSError as error:
            raise TransferError(error.errno or 0, "read", path, offset) from error
        if not piece:
            where = "" if record is not None else ", in the middle of its header"
            raise CorruptFileError(path, record, f"the file ends at byte {offset}{where}: it was cut short")
        pieces.append(piece)
        offset += len(piece)
        nbytes -= len(piece)
    return b"".join(pieces)
