"""Small reads of headers, each one checked."""

from __future__ import annotations

import os

from fastio.errors import CorruptFileError, TransferError


def read_at(path: str, fd: int, offset: int, nbytes: int) -> bytes:
    """Exactly ``nbytes`` bytes at ``offset``. CorruptFileError if the file ends before, TransferError if it fails."""
    pieces = []
    while nbytes > 0:
        try:
            piece = os.pread(fd, nbytes, offset)
        except OSError as error:
            raise TransferError(error.errno or 0, "read", path, offset) from error
        if not piece:
            raise CorruptFileError(path, None, f"ends at byte {offset}, in the middle of its header: it was cut short")
        pieces.append(piece)
        offset += len(piece)
        nbytes -= len(piece)
    return b"".join(pieces)
