"""Opening files and folders so that no interrupt leaves them open, with the errors that Python's own open raises."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator


@contextlib.contextmanager
def opened(path: str) -> Iterator[tuple[int, int]]:
    """The file descriptor and the size of a file.

    FileNotFoundError, IsADirectoryError, PermissionError as ``open`` raises them.
    """
    with io.FileIO(path, "rb") as file:  # not a bare descriptor, which an interrupt may leave open
        fd = file.fileno()
        yield fd, os.fstat(fd).st_size


def is_path(f: object) -> bool:
    """Whether ``f`` names a file, rather than being one."""
    return isinstance(f, (str, os.PathLike))
