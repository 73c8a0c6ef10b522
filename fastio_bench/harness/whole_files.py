"""Files that are there as a whole: what was there before stays until all of the new one is written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path


@contextmanager
def replacing(path: Path, room: int = 0) -> Iterator[Callable[[bytes], None]]:
    """Yields what writes the file, once and all of it, or else raises OSError and leaves what was there.

    It is written beside the file, where ``room``, so many bytes, is taken at once: a disk that fills up meanwhile does
    not matter then. What is no file (``/dev/stdout``) is written as it is. Raises OSError where nothing can be written.
    """
    if path.exists() and not path.is_file():
        with open(path, "wb", buffering=0) as device:
            yield lambda data: _write(device, data)
        return
    path = path.resolve()  # a link stays one
    part = path.with_name(f"{path.name}.part")

    def keep(data: bytes) -> None:
        with open(part, "r+b", buffering=0) as stream:
            _write(stream, data)
            stream.truncate()
        part.replace(path)

    try:
        with open(part, "wb", buffering=0) as stream:
            if room:
                os.posix_fallocate(stream.fileno(), 0, room)
        yield keep
    finally:
        part.unlink(missing_ok=True)


def _write(stream: FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[stream.write(left) :]


def write(path: Path, text: str) -> None:
    """The text as the whole file, UTF-8; OSError where that fails, and what was there stays."""
    with replacing(path) as keep:
        keep(text.encode(errors="backslashreplace"))
