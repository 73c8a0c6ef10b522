"""The temporary file beside a file to be replaced: its name, its lock, and the removal of leftovers.

Its writer holds a lock on it. So the next save of the same path recognises the leftovers of dead processes and removes
them. On a filesystem without such locks the age decides.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import io
import os
import re
import stat
import time
from collections.abc import Callable, Iterator

from fastio._native import Descriptor
from fastio.errors import FolderMissingError, NotReplaceableError, TransferError
from fastio.files.save_target import Target

# Temporary files of one target have fixed names, so leftovers are found without listing the folder. Further concurrent
# writers get random names.
_SLOTS = 4
_RANDOM_NBYTES = 8
# The slots of files without a lock begin with this, so that other machines do not look for a lock.
_UNLOCKED = "u"
# A writer without a lock that has written nothing for so long counts as dead.
_LEFTOVER_SECONDS = 24 * 3600.0
# Another save may remove a new file as a leftover before its writer has locked it. On a filesystem where locks never
# hold, or where the inode of a name keeps changing, the retries must end in an error.
_TRIES = 100
_LONGEST_NAME = 200
_RANDOM = f"[0-9a-f]{{{2 * _RANDOM_NBYTES}}}"
_LOCKED = f"[0-{_SLOTS - 1}]|{_RANDOM}"  # the slots of files with a lock
_TEMPORARY = re.compile(rf"\.(.+)\.fastio-(?:{_LOCKED}|{_UNLOCKED}{_RANDOM})\.tmp")
# From Lustre without its option "flock", and FUSE and NFS without a lock server.
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
_NOT_WRITABLE = (errno.EACCES, errno.EPERM)
_USUAL_MODE = 0o666


class _NoLocksError(Exception):
    """The filesystem has no locks."""


class Folder:
    """The folder of a target, kept open: names in it stay valid when the working folder changes.

    ``fd`` can be listed and synced if ``readable``. Raises OSError.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._held = Descriptor(name, os.O_RDONLY | os.O_DIRECTORY)
        self.readable = True
        try:
            self.fd = self._held.open()
        except PermissionError:  # it may still be writable, though not readable
            self._held = Descriptor(name, os.O_PATH | os.O_DIRECTORY)
            self.readable = False
            self.fd = self._held.open()

    def has(self, base: str, fd: int) -> bool:
        """Whether a name in the folder is that of an open file."""
        try:
            return os.path.samestat(os.stat(base, dir_fd=self.fd, follow_symlinks=False), os.fstat(fd))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Close the folder's descriptor."""
        self._held.close()


class TemporaryFile:
    """The new file beside a target: empty and open, under a name of its own, locked if the filesystem has locks.

    The object is there before the file, which an interrupt at any moment leaves in it: then :meth:`discard` removes it.
    """

    def __init__(self, folder: Folder) -> None:
        self.name = ""
        self.file = io.FileIO.__new__(io.FileIO)
        self._folder = folder

    def create(self, target: Target, path: str, mode: int = _USUAL_MODE) -> None:
        """Create the file, with no permissions beyond ``mode``. Removes the leftovers of dead writers.

        Raises FolderMissingError or TransferError, which name ``path``.
        """
        try:
            try:
                found = self._create_locked(target, mode)
            except _NoLocksError:
                self.discard()
                before, after = _around_slot(target.base)
                _clear_unlocked(self._folder, target.base)
                self._open(f"{before}{_UNLOCKED}{os.urandom(_RANDOM_NBYTES).hex()}{after}", mode)
                found = True
        except FileNotFoundError:
            if os.fstat(self._folder.fd).st_nlink:  # as in /proc
                problem = "the filesystem of this folder takes no new files; save to a folder on a disk"
                raise NotReplaceableError(errno.EPERM, problem, path) from None
            raise FolderMissingError(path) from None
        except OSError as error:
            cure = " (make its folder writable, or save to open(path, 'wb'))" if error.errno in _NOT_WRITABLE else ""
            raise TransferError(error.errno or 0, f"creating a file beside it{cure}", path) from error
        if not found:
            raise TransferError(errno.EBUSY, "creating a file beside it", path)

    def discard(self) -> None:
        """Remove the file if there is one, and close it."""
        if self.file.closed:
            return
        try:
            if self._folder.has(self.name, self.file.fileno()):
                os.unlink(self.name, dir_fd=self._folder.fd)
        except FileNotFoundError:
            pass
        except OSError:
            self.file.truncate(0)  # the name stays, without a lock: the next save removes it
        finally:
            self.file.close()

    def _create_locked(self, target: Target, mode: int) -> bool:
        """Create and lock the file; False if other writers have all its names. Raises _NoLocksError."""
        before, after = _around_slot(target.base)
        found = crowded = False
        for slot in range(_SLOTS):
            name = f"{before}{slot}{after}"
            if os.access(name, os.F_OK, dir_fd=self._folder.fd, follow_symlinks=False):
                crowded = True
                _clear(self._folder, name)
            found = found or self._create(name, mode)
        for _ in range(0 if found else _TRIES):
            found = self._create(f"{before}{os.urandom(_RANDOM_NBYTES).hex()}{after}", mode)
            if found:
                break
        if crowded:
            for name in _names(self._folder, target.base, _RANDOM):
                _clear(self._folder, name)
        return found

    def _create(self, name: str, mode: int) -> bool:
        """Create and lock the file under a name; False if another writer has the name. Raises _NoLocksError."""
        try:
            self._open(name, mode)
        except FileExistsError:
            return False
        if _lock(self.file.fileno()) and self._folder.has(name, self.file.fileno()):
            return True
        self.file.close()  # another save removed it as a leftover before it was locked
        return False

    def _open(self, name: str, mode: int) -> None:
        """Create a file of that name. Raises FileExistsError.

        Not a bare descriptor: an interrupt right after ``os.open`` would leak it, and its lock would keep the next save
        from removing the name. The opener is all C code, and the file object is there already, for the same reason.
        """
        self.name = name
        opener = functools.partial(os.open, mode=mode, dir_fd=self._folder.fd)
        self.file.__init__(name, "x+b", opener=opener)  # type: ignore[misc]


def clear_leftovers(folder: str, is_own: Callable[[str], bool]) -> None:
    """Remove the temporary files in a folder whose writers are dead, of all targets whose file names are ``is_own``.

    A save removes those of its own target. This is for a caller whose next save has targets of other names.
    """
    with contextlib.suppress(OSError):  # they are no use, and no harm
        bases = {match[1] for match in map(_TEMPORARY.fullmatch, os.listdir(folder)) if match and is_own(match[1])}
        opened = Folder(folder) if bases else None
        if opened is None:
            return
        try:
            for base in sorted(bases):
                _clear_target(opened, base)
        finally:
            opened.close()


def _clear_target(folder: Folder, base: str) -> None:
    """Remove the temporary files of one target whose writers are dead."""
    try:
        for name in list(_names(folder, base, _LOCKED)):
            _clear(folder, name)
    except _NoLocksError:
        _clear_unlocked(folder, base)


def _around_slot(base: str) -> tuple[str, str]:
    """The parts of a temporary file's name before and after its slot."""
    if len(os.fsencode(base)) > _LONGEST_NAME:
        base = hashlib.blake2b(os.fsencode(base), digest_size=16).hexdigest()
    return f".{base}.fastio-", ".tmp"


def _clear(folder: Folder, name: str) -> None:
    """Remove a temporary file if its writer is dead and removal is allowed. Raises _NoLocksError.

    Links, pipes and folders of that name are not fastio's, and stay.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    # No ExitStack: an interrupt in its exit leaves a reference cycle with all callers, and so the folder open.
    with contextlib.suppress(OSError), Descriptor(os.path.join(folder.name, name), flags) as fd:
        if stat.S_ISREG(os.fstat(fd).st_mode) and _lock(fd) and folder.has(name, fd):
            os.unlink(name, dir_fd=folder.fd)


def _clear_unlocked(folder: Folder, base: str) -> None:
    """Remove the temporary files without a lock that have not been written to for a day."""
    for name in _names(folder, base, f"{_UNLOCKED}{_RANDOM}|[0-{_SLOTS - 1}]"):
        with contextlib.suppress(OSError):  # another process has removed it, or this one may not
            status = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and time.time() - status.st_mtime > _LEFTOVER_SECONDS:
                os.unlink(name, dir_fd=folder.fd)


def _names(folder: Folder, base: str, slot: str) -> Iterator[str]:
    """The temporary files of a target whose slots match a pattern."""
    if folder.readable:
        before, after = map(re.escape, _around_slot(base))
        yield from filter(re.compile(f"{before}(?:{slot}){after}").fullmatch, os.listdir(folder.fd))


def _lock(fd: int) -> bool:
    """Try to lock the file; returns False if another open file has the lock. Raises _NoLocksError."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise _NoLocksError from error
        raise
    return True
