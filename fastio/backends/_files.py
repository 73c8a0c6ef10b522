"""What transports ask about the open file, and the errors that they raise: those name the file and the tensor."""

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


def check_length(request: ReadRequest | WriteRequest) -> None:
    """Raises CorruptFileError, naming the extent, if the file ends before all extents do."""
    size = status(request).st_size
    for extent in request.extents:
        end = extent.offset + extent.nbytes
        if end > size:
            problem = f"the file ends at byte {size}, expected at least {end}: it was cut short; restore it from a copy"
            raise CorruptFileError(request.path, extent.name or None, problem)


def translate_errors(request: ReadRequest | WriteRequest) -> HandledErrors[NativeError]:
    """Inside, native errors become public ones; that of a file that was cut short names the tensor."""
    return HandledErrors(NativeError, partial(_raise_public, request))


def _raise_public(request: ReadRequest | WriteRequest, error: NativeError) -> None:
    public = public_error(error, request.path)
    if isinstance(public, CorruptFileError):
        check_length(request)
    raise public from None
