"""Opening files for reading, with the errors that Python's own open raises."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator


@contextlib.contextmanager
def opened(path: str) -> Iterator[tuple[int, int]]:
    """The file descriptor and the size of a file.

    FileNotFoundError, IsADirectoryError, PermissionError as ``open`` raises them.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        state = os.fstat(fd)
        if stat.S_ISDIR(state.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        yield fd, state.st_size
    finally:
        os.close(fd)


def is_path(f: object) -> bool:
    """Whether ``f`` names a file, rather than being one."""
    return isinstance(f, (str, os.PathLike))
