"""Copies permissions from a replaced file to the new one: owner, mode, access control list and user attributes."""

from __future__ import annotations

import contextlib
import os
import stat

_ACL = "system.posix_acl_access"
_USER_ATTRIBUTES = "user."
# Without setuid, setgid and sticky: they were set for the old content, and the kernel also clears them on a write.
_PERMISSION_BITS = stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO
_OWNER_ACCESS = 0o600  # needed whatever the final mode: tools open the file again while it is written


class FilePermissions:
    """The permissions of the old file ``name``, read before the new file is created."""

    def __init__(self, name: str, old: os.stat_result) -> None:
        self._name = name
        self._old = old
        self._mode = old.st_mode & _PERMISSION_BITS
        try:
            self._attributes = os.listxattr(name)
        except OSError:
            self._attributes = []  # a filesystem without attributes

    @property
    def first_mode(self) -> int:
        """The mode to create the new file with: no wider than the old file's permissions, whatever group it gets."""
        group, others = self._mode >> 3 & 0o7, self._mode & 0o7
        usual = group & ~others == 0 and _ACL not in self._attributes
        return _OWNER_ACCESS | (self._mode if usual else 0)

    def copy_to(self, fd: int) -> int:
        """Give the new file the old one's permissions; returns its final mode.

        Call it before anything is written. If something cannot be copied, the mode becomes narrower. Until the final
        mode is set, the owner may read and write the file. Raises OSError.
        """
        new = os.fstat(fd)
        mode = self._mode
        same_group = _copy_owner(fd, self._old, new)
        if not same_group:
            # Users of the old group now count as others, and users of the new one as group: both get the permissions
            # that group and others had in common.
            shared = mode & mode >> 3 & 0o7
            mode = mode & 0o700 | shared << 3 | shared
        if not self._copy_attributes(fd, same_group):
            mode &= 0o700  # the access control list may have been narrower than the mode
        if stat.S_IMODE(new.st_mode) != mode | _OWNER_ACCESS:
            os.fchmod(fd, mode | _OWNER_ACCESS)
        return mode

    def _copy_attributes(self, fd: int, same_group: bool) -> bool:
        """Copy user attributes and the access control list; returns False if the file cannot get the old one's list."""
        for attribute in self._attributes:
            if attribute.startswith(_USER_ATTRIBUTES):
                with contextlib.suppress(OSError):  # they are only notes: a save must not fail over them
                    os.setxattr(fd, attribute, os.getxattr(self._name, attribute))
        if _ACL in self._attributes and same_group:
            with contextlib.suppress(OSError):
                os.setxattr(fd, _ACL, os.getxattr(self._name, _ACL))
                return True
        _remove_inherited_acl(fd)
        return _ACL not in self._attributes


def _remove_inherited_acl(fd: int) -> None:
    """Remove the access control list that a folder gives to its new files: the old file does not have it."""
    try:
        inherited = _ACL in os.listxattr(fd)
    except OSError:
        return  # a filesystem without attributes
    if inherited:
        os.removexattr(fd, _ACL)


def _copy_owner(fd: int, old: os.stat_result, new: os.stat_result) -> bool:
    """Give the file the old owner and group, as far as allowed; returns whether it has the old group now."""
    if (new.st_uid, new.st_gid) == (old.st_uid, old.st_gid):
        return True
    with contextlib.suppress(OSError):
        os.fchown(fd, old.st_uid, old.st_gid)
        return True
    if new.st_gid == old.st_gid:
        return True  # only root may change the owner; write access to the folder suffices to replace a file
    with contextlib.suppress(OSError):
        os.fchown(fd, -1, old.st_gid)
        return True
    return False
