"""Opens files of a checkpoint folder: only regular files, and never through a symbolic link."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator

from fastio._native import Descriptor
from fastio.errors import CorruptFileError, TransferError

# Errors of open for a symbolic link (with O_NOFOLLOW), a socket, and a missing device.
_NOT_REGULAR = frozenset({errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.ENOTDIR})


@contextlib.contextmanager
def opened_regular(path: str) -> Iterator[tuple[int, int]]:
    """Open a regular file for reading; yields its descriptor and its size in bytes.

    FileNotFoundError if it is missing, CorruptFileError if it is a link, a folder, a pipe or a device, TransferError if
    the system refuses.
    """
    with contextlib.ExitStack() as stack:
        # Without O_NONBLOCK, opening a pipe would wait for its writer.
        file = Descriptor(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:  # not around the yield: the caller's errors are not those of opening
            fd = stack.enter_context(file)
            found = os.fstat(fd)
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_NONBLOCK)
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno in _NOT_REGULAR:
                raise _not_regular(path) from None
            raise TransferError(error.errno or 0, "opening", path) from error
        if not stat.S_ISREG(found.st_mode):
            raise _not_regular(path)
        yield fd, found.st_size


def is_regular(path: str) -> bool:
    """Return whether there is a regular file of that name, not a link to one."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _not_regular(path: str) -> CorruptFileError:
    return CorruptFileError(
        path, None, "is no regular file (links are not followed): put the file itself in its place, or remove the step"
    )
