"""Opens the files of a checkpoint folder: regular files only, and never through a symbolic link."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator

from fastio._native import Descriptor
from fastio.errors import CorruptFileError, TransferError

# What open says of a symbolic link (with O_NOFOLLOW), of a socket, and of a device that is not there.
_NO_FILE = frozenset({errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.ENOTDIR})


@contextlib.contextmanager
def opened_regular(path: str) -> Iterator[tuple[int, int]]:
    """The descriptor and the size in bytes of a regular file, open for reading.

    FileNotFoundError if there is nothing, CorruptFileError if it is a link, a folder, a pipe or a device, TransferError
    if the system refuses.
    """
    with contextlib.ExitStack() as stack:
        # Without O_NONBLOCK, opening a pipe would wait for its writer.
        file = Descriptor(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:  # around nothing that runs inside the context
            fd = stack.enter_context(file)
            found = os.fstat(fd)
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) & ~os.O_NONBLOCK)
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno in _NO_FILE:
                raise _not_regular(path) from None
            raise TransferError(error.errno or 0, "opening", path) from error
        if not stat.S_ISREG(found.st_mode):
            raise _not_regular(path)
        yield fd, found.st_size


def is_regular(path: str) -> bool:
    """Whether there is a regular file of that name, which is no link to one."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _not_regular(path: str) -> CorruptFileError:
    return CorruptFileError(
        path, None, "is no regular file (links are not followed): put the file itself in its place, or remove the step"
    )
