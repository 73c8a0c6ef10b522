"""Folders whose path is longer than the kernel takes in one call."""

from __future__ import annotations

import contextlib
import os

from fastio._native import Descriptor

# PATH_MAX, less what the names of a step's folder and of its temporary files add.
_LONGEST = 4096 - 512
_FLAGS = os.O_PATH | os.O_DIRECTORY


class ReachableFolder:
    """A folder by a ``path`` that system calls take: its absolute one, or if that is too long, one through /proc.

    The path through /proc is valid as long as this object. Made if it is missing, where ``make`` is set. OSError.
    """

    def __init__(self, folder: str, make: bool) -> None:
        self._held: Descriptor | None = None
        try:
            self.path = os.path.abspath(folder)
            is_long = len(os.fsencode(self.path)) > _LONGEST
        except OSError:  # the working folder's own path is too long
            is_long = True
        if is_long:
            self._held = _walked(folder, make)
            self.path = _inside(self._held)
        elif make:
            os.makedirs(self.path, exist_ok=True)


def _walked(folder: str, make: bool) -> Descriptor:
    """The folder, opened part by part."""
    here = Descriptor("/" if os.path.isabs(folder) else ".", _FLAGS)
    here.open()
    for part in filter(None, folder.split("/")):
        path = f"{_inside(here)}/{part}"
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
        below = Descriptor(path, _FLAGS)
        below.open()
        here = below
    return here


def _inside(folder: Descriptor) -> str:
    return f"/proc/self/fd/{folder.fileno()}"
