"""Writes files atomically: the old file stays until the new one is complete."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path


@contextmanager
def replacing(path: Path, room: int = 0) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that writes the whole file once, or raises OSError and leaves the old one.

    A temporary file beside it reserves ``room`` bytes at once, so a disk that fills up later does no harm. What is not
    a regular file (``/dev/stdout``) is written directly. Raises OSError if nothing can be written there.
    """
    if path.exists() and not path.is_file():
        with open(path, "wb", buffering=0) as device:
            yield lambda data: _write(device, data)
        return
    path = path.resolve()  # a symbolic link stays a link
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
    """Write the text (UTF-8) as the whole file. Raises OSError and keeps the old file if that fails."""
    with replacing(path) as keep:
        keep(text.encode(errors="backslashreplace"))
