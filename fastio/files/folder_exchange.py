"""Replaces a folder by another in one step, where the filesystem can; elsewhere so that a kill loses neither."""

from __future__ import annotations

import ctypes
import errno
import os

from fastio.files.atomic_file import sync_folder

_HELD = ".replaced"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_CANNOT = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)  # EPERM: a sandbox that does not know the call


def exchange_folders(new: str, old: str) -> None:
    """Exchange two folders of one filesystem, durably. OSError if the system refuses; both are somewhere then.

    Where the filesystem cannot do it in one step, a kill may leave no folder at ``old``, but a whole one beside
    ``new``: :func:`put_back` gives it its place again.
    """
    if exchanged(new, old):
        _sync_parents(new, old)
        return
    held = new + _HELD
    for source, target in ((old, held), (new, old), (held, new)):
        os.rename(source, target)
        _sync_parents(new, old)


def put_back(beside: str, folder: str) -> None:
    """Give the folders held in ``beside`` by an exchange that ended too early their places in ``folder`` again.

    Those whose successors are in place stay where they are. OSError if the system refuses.
    """
    try:
        names = os.listdir(beside)
    except FileNotFoundError:
        return
    for name in names:
        place = os.path.join(folder, name.removesuffix(_HELD))
        if name.endswith(_HELD) and not os.path.lexists(place):
            os.rename(os.path.join(beside, name), place)
            sync_folder(folder)


def exchanged(one: str, other: str) -> bool:
    """Exchange two folders in one step; False if that is not possible here."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # glibc 2.28 and newer
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _CANNOT:
        return False
    raise OSError(number, os.strerror(number), one, None, other)


def _sync_parents(*paths: str) -> None:
    for path in paths:
        sync_folder(os.path.dirname(path) or os.curdir)
