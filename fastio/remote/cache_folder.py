"""The folder that holds copies of remote files. The least recently used ones go first; one that is read stays.

A copy gets its name when it is whole, and is never written to afterwards, only removed. Who reads it holds a shared
lock on it. A download holds an exclusive lock on its ``.part``, so a part without one is what a killed download left.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from typing import NamedTuple

from platformdirs import user_cache_dir

from fastio import config
from fastio._native import Descriptor
from fastio.errors import TransferError
from fastio.sizes import parse_size

PART = ".part"


def folder(name: str) -> str:
    """The path of a folder of the cache, which is made if it is missing. TransferError if the system refuses."""
    root = os.path.expanduser(str(config.get("cache")) or user_cache_dir("fastio", appauthor=False))
    path = os.path.join(os.path.abspath(root), "remote", name)
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError as error:
        raise TransferError(error.errno or 0, "making the folder of the cache (FASTIO_CACHE)", path) from error
    return path


def digest(text: str) -> str:
    """A text of 32 letters and digits for a text of any length."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def make_room(path: str, nbytes: int) -> None:
    """Remove leftovers of killed downloads, and copies until ``nbytes`` more fit into the cache and on its disk.

    A file that is larger than the cache may be is held all the same, until the next one.
    """
    limit = parse_size(config.get("cache_size"), "FASTIO_CACHE_SIZE") or 0
    copies = _copies(path)
    used = sum(copy.nbytes for copy in copies)
    status = os.statvfs(path)
    free = status.f_bavail * status.f_frsize
    for copy in sorted(copies, key=lambda copy: (not copy.is_part, copy.used)):
        if not copy.is_part and used + nbytes <= limit and nbytes <= free:
            return
        if remove(copy.path):
            used -= copy.nbytes
            free += copy.nbytes


def remove(path: str) -> bool:
    """Remove a copy, or what is left of a download, unless somebody uses it; return whether it is gone."""
    try:
        with Descriptor(path, os.O_RDONLY | os.O_NOFOLLOW) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                os.unlink(path)
    except FileNotFoundError:
        return True
    except OSError:  # it is in use, or another user's
        return False
    return True


def remove_others(path: str) -> None:
    """Remove copies of other versions of the file that this one is a copy of."""
    where, name = os.path.split(path)
    prefix = name.partition("-")[0] + "-"
    for copy in _copies(where):
        other = os.path.basename(copy.path)
        if other.startswith(prefix) and other != name and not copy.is_part:
            remove(copy.path)


class _Copy(NamedTuple):
    path: str
    nbytes: int
    used: int
    is_part: bool


def _copies(path: str) -> list[_Copy]:
    found = []
    with os.scandir(path) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat(follow_symlinks=False)
                found.append(_Copy(entry.path, status.st_size, status.st_atime_ns, entry.name.endswith(PART)))
    return found
