"""Paths on the command line that lead into a volume, with ``file:`` before them or without."""

from __future__ import annotations

from fastio.errors import VolumeError
from fastio.volumes.opening import is_in_volume, split
from fastio.volumes.superblock import is_volume


def named(path: str) -> str:
    """The path with ``file:`` before it, if a file or block device on it holds a volume; else as it is."""
    if is_in_volume(path):
        return path
    try:
        where = split(f"file:{path}")[0]
        return f"file:{path}" if is_volume(where.removeprefix("file:")) else path
    except (VolumeError, OSError):  # no file is on it, or none that can be read: what opens it says so
        return path


def is_whole(path: str) -> bool:
    """Whether a path of :func:`named` means a volume, not an object of one. VolumeError if there is none."""
    return is_in_volume(path) and not split(path)[1]
