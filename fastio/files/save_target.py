"""Resolves the path of a save to the file behind its links, and checks whether it may be replaced."""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

from fastio._native import Descriptor
from fastio.errors import (
    FolderMissingError,
    NotAFolderError,
    NotReplaceableError,
    TargetIsFolderError,
    TransferError,
)

_MOST_LINKS = 40  # in one path, as in the kernel


class Target(NamedTuple):
    """The file to be replaced or created: ``base`` in ``folder``. ``old`` is the status of the existing file, or None.

    ``folder`` is relative if the path is: an absolute name may be too long for the kernel.
    """

    folder: str
    base: str
    old: os.stat_result | None

    @property
    def name(self) -> str:
        """``folder`` and ``base`` joined."""
        return os.path.join(self.folder, self.base)


def find(path: str, follow_link: bool) -> Target:
    """The file that a path names, or with ``follow_link`` the one that it links to.

    Only the kernel resolves the folder: "missing/../x.pt" names no file, and "/proc/7/root/x.pt" a file of another
    container. Raises FolderMissingError, TargetIsFolderError, NotAFolderError, NotReplaceableError or TransferError.
    """
    name = _behind_links(path) if follow_link else path
    folder, base = os.path.split(name)
    old = None
    try:
        old = os.stat(name, follow_symlinks=follow_link)
    except FileNotFoundError:
        ends_in_slash = not base  # "x.pt/" does not name the file x.pt
        if not os.path.isdir((os.path.dirname(folder) if ends_in_slash else folder) or os.curdir):
            raise FolderMissingError(path) from None
        if ends_in_slash:
            raise TargetIsFolderError(path) from None
    except NotADirectoryError:
        if not base and os.path.exists(folder):  # as ``open`` does for a file's name with a slash at the end
            raise TargetIsFolderError(path) from None
        raise NotAFolderError(path) from None
    except OSError as error:
        raise TransferError(error.errno or 0, "stat", path) from error
    if old is not None and stat.S_ISLNK(old.st_mode):
        old = None  # the link itself is replaced, and has no permissions of its own
    if old is not None:
        _check_replaceable(path, name, old)
    return Target(folder or os.curdir, base, old)


def in_place_reason(path: str) -> str:
    """Why a path's file can only be written in place; empty if it can be replaced or does not exist."""
    try:
        if stat.S_ISREG(os.lstat(path).st_mode):
            return ""
        here = os.stat(path)
        if stat.S_ISDIR(here.st_mode):
            return ""
        if not stat.S_ISREG(here.st_mode):
            return "the path is no regular file"
        name = _behind_links(path)
    except (OSError, ValueError):
        return ""
    return "" if name == path or _is(name, here) else "the path names an open file that has no name any more"


def _check_replaceable(path: str, name: str, old: os.stat_result) -> None:
    if stat.S_ISDIR(old.st_mode):
        raise TargetIsFolderError(path)
    if not stat.S_ISREG(old.st_mode):
        problem = "this is a device, a pipe or a socket, which no file can replace; name another path"
        raise NotReplaceableError(errno.EINVAL, problem, path)
    if not os.access(name, os.W_OK):
        try:
            with Descriptor(name, os.O_WRONLY | os.O_NONBLOCK):
                return  # os.access checks the real user, which may differ from the effective one
        except OSError as error:  # also for a disk that is mounted read-only
            raise TransferError(error.errno or errno.EACCES, "opening the file to be replaced", path) from error


def _behind_links(path: str) -> str:
    """Follow the links of a path to the name of the file; returns the path itself if it is not a link."""
    for _ in range(_MOST_LINKS):
        try:
            link = os.readlink(path)
        except OSError:  # no link, or nothing
            break
        path = os.path.join(os.path.dirname(path), link)
    return path


def _is(name: str, here: os.stat_result) -> bool:
    """Whether a name is that of a file. The name that /proc/self/fd shows for a removed file is not."""
    try:
        return os.path.samestat(here, os.stat(name))
    except OSError:
        return False
