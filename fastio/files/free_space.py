"""Says in the error of a full disk how much was needed and how much is free."""

from __future__ import annotations

import contextlib
import errno
import os
from functools import partial

from fastio.errors import TransferError, VolumeFullError
from fastio.runtime.handled_errors import HandledErrors
from fastio.sizes import exact_size

_FULL = (errno.ENOSPC, errno.EDQUOT)


def free_space_named(path: str, nbytes: int | None = None) -> HandledErrors[TransferError]:
    """Inside, the error of a full disk names the bytes that the file at ``path`` needs, if known, and those free."""
    return HandledErrors(TransferError, partial(_raise, path, nbytes))


def _raise(path: str, nbytes: int | None, error: TransferError) -> None:
    if error.errno in _FULL and not isinstance(error, VolumeFullError):
        needed = [] if nbytes is None else [f"the file needs {exact_size(nbytes)}"]
        known = ", ".join([*needed, *_free(path)])
        operation = f"{error.operation} ({known})" if known else error.operation
        raise TransferError(error.errno or 0, operation, str(error.filename), error.offset) from error


def _free(path: str) -> list[str]:
    with contextlib.suppress(OSError):
        found = os.statvfs(os.path.dirname(path) or os.curdir)
        return [f"{exact_size(found.f_bavail * found.f_frsize)} are free"]
    return []
