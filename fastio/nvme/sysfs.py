"""Reads small files of /sys and /proc, below a root that tests may build."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def text(path: Path) -> str:
    """Return the text of a file, stripped; "" if it does not exist or cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def names(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; empty if there is none."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def target(link: Path) -> str:
    """Return the last part of a link's target; "" if there is none."""
    try:
        return os.path.basename(os.readlink(link))
    except OSError:
        return ""


def block_folder(path: str, root: Path) -> Path | None:
    """Return the /sys folder of the block device at ``path``; None for a plain file, or if /sys does not list it.

    Below another root, which cannot have device nodes, a plain file in ``dev`` stands for the device.
    """
    with contextlib.suppress(OSError):
        found = os.stat(path)
        if stat.S_ISBLK(found.st_mode):
            number = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
            return _there(root / "sys/dev/block" / number)
    real = Path(os.path.realpath(path))
    return _there(root / "sys/class/block" / real.name) if real.parent == root.resolve() / "dev" else None


def _there(folder: Path) -> Path | None:
    return folder.resolve() if folder.is_dir() else None
