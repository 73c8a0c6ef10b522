"""Writes all of a buffer to an open file."""

from __future__ import annotations

import errno
import os

from fastio.errors import TransferError


def write_all(path: str, fd: int, memory: memoryview, offset: int) -> None:
    """Write all of ``memory`` (bytes) to the file at ``offset``. TransferError if the system refuses."""
    done = 0
    while done < len(memory):
        try:
            count = os.pwrite(fd, memory[done:], offset + done)
        except OSError as error:
            raise TransferError(error.errno or errno.EIO, "write", path, offset + done) from error
        if count == 0:
            raise TransferError(errno.EIO, "write", path, offset + done)
        done += count
