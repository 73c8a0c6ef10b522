"""A new version of a file, invisible until it is whole: written beside the old one, then renamed over it.

At any instant the path holds the whole old file or the whole new one. A temporary file is held by a lock as long
as its writer lives, so the next save of the same path can tell what a dead process left behind, and clears it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
from types import TracebackType

from fastio import _native
from fastio.errors import FolderMissingError, NotAFolderError, TargetIsFolderError, TransferError
from fastio.native_errors import named

# Temporary files of one target have fixed names, so leftovers are found without listing the folder. Only where more
# writers than that write at once, the others' names are random ones.
_SLOTS = 16
_RANDOM_NBYTES = 8
_LONGEST_NAME = 200


class Replacement:
    """The file that will take the place of ``path``. Use as a context: it is discarded unless committed.

    ``fd`` is open for reading and writing, ``temporary`` its name. Raises FolderMissingError, TargetIsFolderError,
    NotAFolderError or TransferError.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        target = os.path.realpath(path)
        self._target = target
        self._folder, base = os.path.split(target)
        self._mode: os.stat_result | None = None
        says_folder = os.path.basename(path) in ("", os.curdir, os.pardir)  # "x.pt/" is no name of the file x.pt
        try:
            self._mode = os.stat(os.path.join(target, "") if says_folder else target)
        except FileNotFoundError:
            if not os.path.isdir(self._folder):
                raise FolderMissingError(path) from None
            if says_folder:
                raise TargetIsFolderError(path) from None
        except NotADirectoryError:
            raise NotAFolderError(path) from None
        except OSError as error:
            raise TransferError(error.errno or 0, "stat", path) from error
        if self._mode is not None and stat.S_ISDIR(self._mode.st_mode):
            raise TargetIsFolderError(path)
        if self._mode is not None and not os.access(target, os.W_OK):
            raise TransferError(errno.EACCES, "opening the file to be replaced", path)
        self.fd, self.temporary = self._claim(base)

    def __enter__(self) -> Replacement:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.fd >= 0:
            self._discard()

    def allocate(self, nbytes: int) -> None:
        """Set the size and reserve the blocks: a full disk shows before the first byte is written."""
        with named(self.path):
            _native.allocate(self.fd, nbytes)

    def commit(self, durable: bool) -> None:
        """Put the file in its place. With ``durable``, it survives a power cut once this returns."""
        try:
            if self._mode is not None:
                self._keep_owner(self._mode)
            if durable:
                os.fsync(self.fd)
            os.rename(self.temporary, self._target)
        except OSError as error:
            raise TransferError(error.errno or 0, "fsync and rename", self.path) from error
        fd, self.fd = self.fd, -1
        try:
            os.close(fd)
            if durable:
                sync_folder(self._folder)
        except OSError as error:
            raise TransferError(error.errno or 0, "fsync of the folder", self.path) from error

    def _discard(self) -> None:
        fd, self.fd = self.fd, -1
        try:
            os.unlink(self.temporary)
        except FileNotFoundError:
            pass
        except OSError:
            os.ftruncate(fd, 0)  # the name stays, held by nobody: the next save clears it
        finally:
            os.close(fd)

    def _keep_owner(self, old: os.stat_result) -> None:
        os.fchmod(self.fd, stat.S_IMODE(old.st_mode))
        new = os.fstat(self.fd)
        if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
            try:
                os.fchown(self.fd, old.st_uid, old.st_gid)
            except PermissionError:
                return  # only root may give files away; who may write the folder may replace the file

    def _claim(self, base: str) -> tuple[int, str]:
        found: tuple[int, str] | None = None
        crowded = False
        try:
            for slot in [*map(str, range(_SLOTS)), secrets.token_hex(_RANDOM_NBYTES)]:
                name = os.path.join(self._folder, _temporary_name(base, slot))
                if os.path.lexists(name):
                    crowded = True
                    _clear(name)
                if found is None:
                    fd = _create(name)
                    if fd is not None:
                        found = fd, name
                elif slot == str(_SLOTS - 1):
                    break
            if crowded:
                _clear_slotless(self._folder, base)
        except OSError as error:
            raise TransferError(error.errno or 0, "creating a file beside it", self.path) from error
        if found is None:
            raise TransferError(errno.EBUSY, "creating a file beside it", self.path)
        return found


def write_all(new: Replacement, data: bytes) -> None:
    """Make ``data`` the contents of a new file. TransferError if the system refuses."""
    at = 0
    while at < len(data):
        try:
            at += os.pwrite(new.fd, data[at:], at)
        except OSError as error:
            raise TransferError(error.errno or 0, "write", new.path, at) from error


def _temporary_name(base: str, slot: str) -> str:
    if len(os.fsencode(base)) > _LONGEST_NAME:
        base = hashlib.blake2b(os.fsencode(base), digest_size=16).hexdigest()
    return f".{base}.fastio-{slot}.tmp"


def _create(name: str) -> int | None:
    """A new locked file of that name; None if another writer has it."""
    try:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError:
        return None
    if _lock(fd) and _is_still(name, fd):
        return fd
    os.close(fd)  # someone took it for a leftover between the two calls
    return None


def _clear(name: str) -> None:
    """Remove a temporary file that no living writer holds."""
    try:
        fd = os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return  # gone meanwhile, or not ours
    try:
        if _lock(fd) and _is_still(name, fd):
            os.unlink(name)
    finally:
        os.close(fd)


def _clear_slotless(folder: str, base: str) -> None:
    """Remove the temporary files that found no slot and that no living writer holds."""
    try:
        names = os.listdir(folder)
    except PermissionError:
        return  # it may be written to, but not listed
    around = _temporary_name(base, "\0").split("\0")
    ours = re.compile(f"[0-9a-f]{{{2 * _RANDOM_NBYTES}}}".join(map(re.escape, around)))
    for name in filter(ours.fullmatch, names):
        _clear(os.path.join(folder, name))


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(name: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(name, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False


def sync_folder(folder: str) -> None:
    """Make what was created, renamed or removed in a folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a filesystem whose folders need no sync
            raise
    finally:
        os.close(fd)
