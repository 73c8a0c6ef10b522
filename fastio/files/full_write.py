"""Writes all of a buffer to an open file, or to a file object."""

from __future__ import annotations

import errno
import io
import os
from typing import Any

from fastio.errors import TransferError
from fastio.sizes import exact_size


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


def whole_writes(f: Any, name: str) -> Any:
    """``f``, or a wrapper of it whose ``write`` writes everything or raises TransferError.

    A raw file may write less, and torch does not check. Other file objects write everything.
    """
    # The file objects of tempfile hold the raw file in `file`.
    is_raw = isinstance(f, io.RawIOBase) or isinstance(getattr(f, "file", None), io.RawIOBase)
    return WholeWrites(f, name) if is_raw else f


class WholeWrites:
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
                raise TransferError(error.errno, f"write of {exact_size(len(rest))}", self._name) from error
            if count is None and self._is_blocking():
                break  # a Python class whose write returns nothing
            if not count:
                number = errno.EAGAIN if count is None else errno.EIO
                raise TransferError(number, f"write of {exact_size(len(rest))} to a raw file object", self._name)
            rest = rest[count:]
        return nbytes

    def _is_blocking(self) -> bool:
        try:
            return os.get_blocking(self.raw.fileno())
        except (OSError, ValueError):
            return True
