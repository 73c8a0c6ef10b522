"""Brings files into or out of the page cache, and verifies it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from fastio._native import resident as _resident

WARM = 0.999  # this share counts as all: the kernel may reclaim a page at any time
_CHUNK = 8 << 20
_PAUSE_S = 0.05


class ResidencyError(OSError):
    """A file could not be brought into, or out of, the page cache."""


def files(path: str | os.PathLike[str]) -> list[Path]:
    """The file itself, or every file below a folder (a distributed checkpoint is one)."""
    path = Path(path)
    return sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]


def resident(path: str | os.PathLike[str]) -> float:
    """The share of the file's (or folder's) pages that the page cache holds, 0 to 1."""
    held = total = 0.0
    for file in files(path):
        fd = os.open(file, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            total += size
            held += size * _resident(fd, size)
        finally:
            os.close(fd)
    return held / total if total else 0.0


def drop(path: str | os.PathLike[str], attempts: int = 5) -> None:
    """Write the file out and drop it from the page cache. Raises ResidencyError if some of it stays.

    ``posix_fadvise(DONTNEED)`` skips pages that are dirty or in use, so its success proves nothing.
    """
    share = 1.0
    for attempt in range(attempts):
        if attempt:
            time.sleep(_PAUSE_S)  # pages still in use may be free by then
        for file in files(path):
            fd = os.open(file, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
        share = resident(path)
        if share == 0:
            return
    raise ResidencyError(
        f"{path}: {share:.1%} of it stays in the page cache, so a read would not be cold; "
        "use a folder on a disk (not tmpfs), and let no other process hold the file mapped"
    )


def warm(path: str | os.PathLike[str], attempts: int = 5) -> None:
    """Read the file until the page cache holds (nearly) all of it. Raises ResidencyError if it does not."""
    buffer, share = bytearray(_CHUNK), 0.0
    for _ in range(attempts):
        for file in files(path):
            with open(file, "rb", buffering=0) as stream:
                while stream.readinto(buffer):
                    pass
        share = resident(path)
        if share >= WARM:
            return
    raise ResidencyError(f"{path}: the page cache keeps only {share:.2%} of it, so a read would not be warm")


def check(path: str | os.PathLike[str], state: str) -> None:
    """Raise ResidencyError unless the file is ``cold`` or ``warm`` now. Call it right before a timed read."""
    share = resident(path)
    if (state == "cold" and share > 0) or (state == "warm" and share < WARM):
        raise ResidencyError(f"{path}: the page cache holds {share:.2%} of it, so this read would not be {state}")
