"""The files and folders that a path on the command line means."""

from __future__ import annotations

import errno
import os

from fastio.files.open_file import check_regular
from fastio.inspect.listing import contents


def files_of(path: str) -> tuple[str, ...]:
    """The file, or the shards of a folder or of an index. Raises what :func:`contents` does, and OSError."""
    if os.path.isdir(path) or path.endswith(".index.json"):
        return contents(path).files
    check_regular(path)
    return (path,)


def check_folder(path: str) -> None:
    """FileNotFoundError or NotADirectoryError, with the cure, if a path is no folder that exists."""
    if not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, "there is no such folder; make it first, or name another", path)
    if not os.path.isdir(path):
        raise NotADirectoryError(errno.ENOTDIR, "this is a file, expected a folder: name the folder it is in", path)
