"""Small files of /sys and /proc, below a root that a test may build by itself."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def text(path: Path) -> str:
    """What a file says, stripped; "" where it is not there, or does not let itself be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def names(folder: Path) -> list[str]:
    """What is in a folder, sorted; nothing where there is none."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def target(link: Path) -> str:
    """The last part of where a link leads; "" where there is none."""
    try:
        return os.path.basename(os.readlink(link))
    except OSError:
        return ""


def block_folder(path: str, root: Path) -> Path | None:
    """The folder of /sys about the block device at ``path``; None for a plain file, or what /sys does not know.

    Below a root of one's own, where device nodes cannot be made, a plain file in ``dev`` stands for the device.
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
