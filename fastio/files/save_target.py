"""What a path to save to names: the file behind its links, and whether a new one may take its place."""

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

_MOST_LINKS = 40  # of one path, as for the kernel


class Target(NamedTuple):
    """The file to be replaced or made: ``base`` in ``folder``. ``old`` is the status of the file that is there.

    ``folder`` is relative to the working folder if the path is: an absolute name may be longer than the kernel takes.
    """

    folder: str
    base: str
    old: os.stat_result | None

    @property
    def name(self) -> str:
        """Its whole name."""
        return os.path.join(self.folder, self.base)


def find(path: str, follow_link: bool) -> Target:
    """The file that a path names, or with ``follow_link`` the one that it links to.

    The kernel alone resolves the folder: "missing/../x.pt" names nothing, and "/proc/7/root/x.pt" a file of another
    container. Raises FolderMissingError, TargetIsFolderError, NotAFolderError, NotReplaceableError or TransferError.
    """
    name = _behind_links(path) if follow_link else path
    folder, base = os.path.split(name)
    old = None
    try:
        old = os.stat(name, follow_symlinks=follow_link)
    except FileNotFoundError:
        ends_in_slash = not base  # "x.pt/" is no name of the file x.pt
        if not os.path.isdir((os.path.dirname(folder) if ends_in_slash else folder) or os.curdir):
            raise FolderMissingError(path) from None
        if ends_in_slash:
            raise TargetIsFolderError(path) from None
    except NotADirectoryError:
        if not base and os.path.exists(folder):  # as open says of a file's name with a slash after it
            raise TargetIsFolderError(path) from None
        raise NotAFolderError(path) from None
    except OSError as error:
        raise TransferError(error.errno or 0, "stat", path) from error
    if old is not None and stat.S_ISLNK(old.st_mode):
        old = None  # the link itself is replaced, and has no rights of its own
    if old is not None:
        _check_replaceable(path, name, old)
    return Target(folder or os.curdir, base, old)


def in_place(path: str) -> str:
    """Why what a path names can only be written to where it is; empty if it can be replaced, or is not there."""
    try:
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
        problem = "this is a device, a pipe or a socket, whose place no file may take; name another path"
        raise NotReplaceableError(errno.EINVAL, problem, path)
    if not os.access(name, os.W_OK):
        try:
            with Descriptor(name, os.O_WRONLY | os.O_NONBLOCK):
                return  # os.access goes by the real user, who may be another than the effective one
        except OSError as error:  # it may be on a disk that is mounted read-only
            raise TransferError(error.errno or errno.EACCES, "opening the file to be replaced", path) from error


def _behind_links(path: str) -> str:
    """The name of the file that a path is a link to, in as many steps as it takes; the path itself if it is none."""
    for _ in range(_MOST_LINKS):
        try:
            link = os.readlink(path)
        except OSError:  # no link, or nothing
            break
        path = os.path.join(os.path.dirname(path), link)
    return path


def _is(name: str, here: os.stat_result) -> bool:
    """Whether a name is that of a file. What /proc/self/fd says of a file is none once the file was removed."""
    try:
        return os.path.samestat(here, os.stat(name))
    except OSError:
        return False
