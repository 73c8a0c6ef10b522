"""What a new file takes over from the one it replaces: owner, mode, access control list, and users' attributes."""

from __future__ import annotations

import contextlib
import os
import stat

_ACL = "system.posix_acl_access"
_USERS = "user."
# Not setuid, setgid and sticky: they were given to the old bytes, and the kernel takes them away at a write, too.
_RIGHTS = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO
_OPENED = 0o600  # whatever its mode: while a file is written, tools open it again


class FilePermissions:
    """What the old file ``name`` has of these. Made before the new file is."""

    def __init__(self, name: str, old: os.stat_result) -> None:
        self._name = name
        self._old = old
        self._mode = old.st_mode & _RIGHTS
        try:
            self._attributes = os.listxattr(name)
        except OSError:
            self._attributes = []  # a filesystem that has none

    @property
    def first_mode(self) -> int:
        """The mode to create the new file with.

        It keeps out all users whom the old file keeps out, whatever group the new one comes to have.
        """
        group, others = self._mode >> 3 & 0o7, self._mode & 0o7
        usual = group & ~others == 0 and _ACL not in self._attributes
        return _OPENED | (self._mode if usual else 0)

    def take_over(self, fd: int) -> int:
        """Let the new file have them; gives the mode that it has to have at last.

        To be called before anything is written. Where something cannot be taken over, fewer may read the file. Until
        the end its owner may read and write it. Raises OSError.
        """
        new = os.fstat(fd)
        mode = self._mode
        same_group = _has_group(fd, self._old, new)
        if not same_group:
            # Who was in the old group is not in this one, and the other way round: both get what both had.
            shared = mode & mode >> 3 & 0o7
            mode = mode & 0o700 | shared << 3 | shared
        if not self._has_attributes(fd, same_group):
            mode &= 0o700  # the list may have kept out whom the mode would let in
        if stat.S_IMODE(new.st_mode) != mode | _OPENED:
            os.fchmod(fd, mode | _OPENED)
        return mode

    def _has_attributes(self, fd: int, same_group: bool) -> bool:
        """Copy users' attributes and the access control list; False if there is one that the file cannot have."""
        for attribute in self._attributes:
            if attribute.startswith(_USERS):
                with contextlib.suppress(OSError):  # notes, and what they were is not worth a save
                    os.setxattr(fd, attribute, os.getxattr(self._name, attribute))
        if _ACL in self._attributes and same_group:
            with contextlib.suppress(OSError):
                os.setxattr(fd, _ACL, os.getxattr(self._name, _ACL))
                return True
        _remove_inherited(fd)
        return _ACL not in self._attributes


def _remove_inherited(fd: int) -> None:
    """A folder may give its new files a list, which the old one's owner has taken away from it."""
    try:
        inherited = _ACL in os.listxattr(fd)
    except OSError:
        return  # a filesystem that has none
    if inherited:
        os.removexattr(fd, _ACL)


def _has_group(fd: int, old: os.stat_result, new: os.stat_result) -> bool:
    """Give the file to its old owner and group, as far as that is allowed; whether it has the group now."""
    if (new.st_uid, new.st_gid) == (old.st_uid, old.st_gid):
        return True
    with contextlib.suppress(OSError):
        os.fchown(fd, old.st_uid, old.st_gid)
        return True
    if new.st_gid == old.st_gid:
        return True  # only root may give files away; who may write the folder may replace the file
    with contextlib.suppress(OSError):
        os.fchown(fd, -1, old.st_gid)
        return True
    return False
