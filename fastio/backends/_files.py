"""Complete reads and writes of host memory: short transfers are continued, errors name the file and the offset."""

from __future__ import annotations

import errno
import os
from functools import partial

from fastio._native import Control
from fastio.errors import CorruptFileError, RefusedError, TransferError
from fastio.runtime.handled_errors import HandledErrors
from fastio.runtime.native_errors import NativeError, public_error
from fastio.transports.transport import ReadRequest, WriteRequest


def failure(error: OSError, operation: str, path: str, offset: int | None = None) -> TransferError:
    """The TransferError for an OSError."""
    return TransferError(error.errno or errno.EIO, operation, path, offset)


def stop_if_cancelled(control: Control, path: str) -> None:
    """Raises RefusedError after ``control.cancel()``."""
    if control.cancelled:
        raise RefusedError(f"{path}: the transfer was cancelled")


def status(request: ReadRequest | WriteRequest) -> os.stat_result:
    """``fstat`` of the open file."""
    try:
        return os.fstat(request.fd)
    except OSError as error:
        raise failure(error, "stat", request.path) from error


def check_length(request: ReadRequest) -> None:
    """Raises CorruptFileError, naming the extent, if the file ends before all extents do."""
    size = status(request).st_size
    for extent in request.extents:
        if extent.offset + extent.nbytes > size:
            raise truncated(request.path, extent.name, size, extent.offset + extent.nbytes)


def truncated(path: str, name: str, size: int, expected: int) -> CorruptFileError:
    """The error for a file that ends at byte ``size`` instead of ``expected`` or later."""
    problem = f"the file ends at byte {size}, expected at least {expected}: it was cut short; restore it from a copy"
    return CorruptFileError(path, name or None, problem)


def translate_read_errors(request: ReadRequest) -> HandledErrors[NativeError]:
    """Inside, native errors of a read become public ones; that of a file that was cut short names the tensor."""
    return HandledErrors(NativeError, partial(_raise_public, request))


def _raise_public(request: ReadRequest, error: NativeError) -> None:
    public = public_error(error, request.path)
    if isinstance(public, CorruptFileError):
        check_length(request)
    raise public from None


def read_all(path: str, fd: int, memory: memoryview, offset: int, name: str = "") -> None:
    """Fill all of ``memory`` (bytes) from the file at ``offset``; ``name`` is what a truncation error calls it."""
    done = 0
    while done < len(memory):
        try:
            count = os.preadv(fd, [memory[done:]], offset + done)
        except OSError as error:
            raise failure(error, "read", path, offset + done) from error
        if count == 0:
            raise truncated(path, name, offset + done, offset + len(memory))
        done += count
