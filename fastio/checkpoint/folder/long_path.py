"""Opens folders whose path is longer than the kernel accepts in one call."""

from __future__ import annotations

import contextlib
import os

from fastio._native import Descriptor

# PATH_MAX less room for the names of a step's folder and of its temporary files.
_LONGEST = 4096 - 512
_FLAGS = os.O_PATH | os.O_DIRECTORY


class LongPathFolder:
    """Gives a folder a ``path`` that system calls accept: its absolute path or, if that is too long, one through /proc.

    The path through /proc is valid as long as this object lives. With ``make`` a missing folder is made, but
    not its parents; ``was_made`` says whether it was. OSError if the folder cannot be made or opened.
    """

    def __init__(self, folder: str, make: bool) -> None:
        self._held: Descriptor | None = None
        self.was_made = False
        try:
            self.path = os.path.abspath(folder)
            is_long = len(os.fsencode(self.path)) > _LONGEST
        except OSError:  # the working directory's path is too long
            is_long = True
        if is_long:
            self._held, self.was_made = _open_part_by_part(folder, make)
            self.path = _proc_path(self._held)
        elif make:
            try:
                os.mkdir(self.path)
                self.was_made = True
            except FileExistsError:
                if not os.path.isdir(self.path):
                    raise


def descriptors_of(path: str) -> list[int]:
    """Return the descriptors that another process must inherit to use the path of a folder: one, or none."""
    number = path.removeprefix("/proc/self/fd/")
    return [int(number)] if number != path else []


def _open_part_by_part(folder: str, make: bool) -> tuple[Descriptor, bool]:
    was_made = False
    current = Descriptor("/" if os.path.isabs(folder) else ".", _FLAGS)
    current.open()
    parts = [*filter(None, folder.split("/"))]
    for number, part in enumerate(parts, 1):
        path = f"{_proc_path(current)}/{part}"
        if make and number == len(parts):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
                was_made = True
        below = Descriptor(path, _FLAGS)
        below.open()
        current = below
    return current, was_made


def _proc_path(folder: Descriptor) -> str:
    return f"/proc/self/fd/{folder.fileno()}"
