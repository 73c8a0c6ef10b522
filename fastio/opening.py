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


class Descriptor:
    """A file or folder, opened as by os.open by :meth:`open`, or as a context. OSError where that fails.

    A bare descriptor is lost, and open for ever, if an exception such as that of Ctrl-C comes as soon as os.open is
    back. This one is in a list by then, since no signal is heard between the two.
    """

    def __init__(self, path: str, flags: int, mode: int = 0o666) -> None:
        self._path, self._flags, self._mode = path, flags | os.O_CLOEXEC, mode
        self._held: list[int] = []

    def open(self) -> int:
        """Open it. Interrupted, it is closed."""
        try:
            self._held.extend(map(os.open, (self._path,), (self._flags,), (self._mode,)))
        except BaseException:
            self.close()
            raise
        return self.fileno()

    def fileno(self) -> int:
        """The descriptor. ValueError if it is not open."""
        if not self._held:
            raise ValueError(f"{self._path} is not open")
        return self._held[0]

    def close(self) -> None:
        """Close it, if it is open."""
        while self._held:
            os.close(self._held.pop())

    def detach(self) -> int | None:
        """The descriptor, to be closed by the caller; None if it is not open."""
        return self._held.pop() if self._held else None

    def __enter__(self) -> int:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()


def is_path(f: object) -> bool:
    """Whether ``f`` names a file, rather than being one."""
    return isinstance(f, (str, os.PathLike))
