"""Makes the folders that files are saved into, and removes them again if the save fails."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence

from fastio.errors import NotReplaceableError, TransferError
from fastio.files.atomic_file import sync_folder


@contextlib.contextmanager
def new_folders(path: str) -> Iterator[None]:
    """Inside, the folder and its parents exist, durably. After an error those that this made are removed if empty.

    TransferError if the system refuses to make them.
    """
    made = make_folders(path)
    try:
        yield
    except BaseException:
        remove_folders(made)
        raise


def make_folders(path: str) -> list[str]:
    """Make a folder and its missing parents, durably; return those that were made, parents first.

    TransferError if the system refuses; none of them is left then.
    """
    missing = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path.rstrip(os.sep))
    made: list[str] = []
    try:
        for folder in reversed(missing):
            made.append(folder)  # before it is made: an interrupt may come at once
            try:
                os.mkdir(folder)
            except FileExistsError:
                made.pop()
                if not os.path.isdir(folder):
                    raise
            sync_folder(os.path.dirname(folder.rstrip(os.sep)) or os.curdir)
    except BaseException as error:
        remove_folders(made)
        if isinstance(error, OSError):
            raise folder_not_made(error, missing[0]) from error
        raise
    return made


def folder_not_made(error: OSError, path: str) -> TransferError:
    """The error for a folder that could not be made; it names the file that is in the way, if one is."""
    there = path
    while there and not os.path.lexists(there):
        there = os.path.dirname(there.rstrip(os.sep)) if there.strip(os.sep) else ""
    if error.errno in (errno.EEXIST, errno.ENOTDIR) and there and not os.path.isdir(there):
        found = "a link to nothing" if os.path.islink(there) and not os.path.exists(there) else "a file"
        problem = f"making the folder failed: expected a folder, found {found}; name another folder, or move it away"
        return NotReplaceableError(error.errno, problem, there)
    return TransferError(error.errno or 0, "making the folder", path)


def remove_folders(made: Sequence[str]) -> None:
    """Remove folders that :func:`make_folders` made, but not those that hold anything."""
    for folder in reversed(made):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
