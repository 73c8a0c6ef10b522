"""Makes the folders that files are saved into, and removes them again if the save fails."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from fastio.errors import TransferError
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
            raise TransferError(error.errno or 0, "making the folder", missing[0]) from error
        raise
    return made


def remove_folders(made: Sequence[str]) -> None:
    """Remove folders that :func:`make_folders` made, but not those that hold anything."""
    for folder in reversed(made):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
