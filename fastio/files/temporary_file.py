"""The temporary file beside a file that is to be replaced: its name, and how others see whether its writer lives.

It is held by a lock as long as its writer lives, so the next save of the same path can tell what a dead process left
behind, and clears it. On a filesystem without such locks age has to tell.
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
from fastio.errors import FolderMissingError, TransferError
from fastio.files.save_target import Target

# Temporary files of one target have fixed names, so leftovers are found without listing the folder. Only where more
# writers than that write at once, the others' names are random ones.
_SLOTS = 4
_RANDOM_NBYTES = 8
# The random names of files without a lock begin with this, so that other machines know that no lock is to be found.
_UNLOCKED = "u"
# A writer without a lock that has written nothing for so long is dead.
_LEFTOVER_SECONDS = 24 * 3600.0
# A new file may be taken for a leftover before its writer has locked it. A filesystem on which no lock ever holds, or
# on which a file is never itself, must end in an error, and not in a loop.
_TRIES = 100
_LONGEST_NAME = 200
# Lustre without its option "flock", and FUSE and NFS without a lock server.
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
_NOT_WRITABLE = (errno.EACCES, errno.EPERM)
_USUAL_MODE = 0o666


class _NoLocksError(Exception):
    """The filesystem has no locks."""


class Folder:
    """The folder of a target, held open: names in it mean the same files wherever the working folder has moved to.

    ``fd`` may be listed and synced if ``readable``. Raises OSError.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._held = Descriptor(name, os.O_RDONLY | os.O_DIRECTORY)
        self.readable = True
        try:
            self.fd = self._held.open()
        except PermissionError:  # it may be written to, but not listed
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


def create(folder: Folder, target: Target, path: str, mode: int = _USUAL_MODE) -> tuple[io.FileIO, str]:
    """A new file beside the target, and its name in the folder; leftovers of dead writers are cleared.

    It is open for reading and writing, has no more rights than ``mode``, and is locked where there are locks. Raises
    FolderMissingError or TransferError, which name ``path``.
    """
    before, after = _around_slot(target.base)
    new = functools.partial(_open_new, folder, mode=mode)
    try:
        try:
            found = _create_locked(folder, target, new)
        except _NoLocksError:
            _clear_unlocked(folder, target.base)
            name = f"{before}{_UNLOCKED}{os.urandom(_RANDOM_NBYTES).hex()}{after}"
            found = new(name), name
    except FileNotFoundError:  # the folder has been removed
        raise FolderMissingError(path) from None
    except OSError as error:
        cure = " (make its folder writable, or save to open(path, 'wb'))" if error.errno in _NOT_WRITABLE else ""
        raise TransferError(error.errno or 0, f"creating a file beside it{cure}", path) from error
    if found is None:
        raise TransferError(errno.EBUSY, "creating a file beside it", path)
    return found


def _create_locked(folder: Folder, target: Target, new: Callable[[str], io.FileIO]) -> tuple[io.FileIO, str] | None:
    before, after = _around_slot(target.base)
    found: tuple[io.FileIO, str] | None = None
    crowded = False
    for slot in range(_SLOTS):
        name = f"{before}{slot}{after}"
        if os.access(name, os.F_OK, dir_fd=folder.fd, follow_symlinks=False):
            crowded = True
            _clear(folder, name)
        if found is None:
            found = _create(folder, name, new)
    for _ in range(_TRIES if found is None else 0):
        found = _create(folder, f"{before}{os.urandom(_RANDOM_NBYTES).hex()}{after}", new)
        if found is not None:
            break
    if crowded:
        for name in _names(folder, target.base, f"[0-9a-f]{{{2 * _RANDOM_NBYTES}}}"):
            _clear(folder, name)
    return found


def _around_slot(base: str) -> tuple[str, str]:
    """What the name of a temporary file has before its slot and after it."""
    if len(os.fsencode(base)) > _LONGEST_NAME:
        base = hashlib.blake2b(os.fsencode(base), digest_size=16).hexdigest()
    return f".{base}.fastio-", ".tmp"


def _open_new(folder: Folder, name: str, mode: int) -> io.FileIO:
    """A new file of that name. FileExistsError.

    Not a bare descriptor: one that an interrupt takes away, as soon as the call is back, would be open for ever, and
    its lock would keep the next save from clearing the name. The opener is C throughout for the same reason.
    """
    return io.FileIO(name, "x+b", opener=functools.partial(os.open, mode=mode, dir_fd=folder.fd))


def _create(folder: Folder, name: str, new: Callable[[str], io.FileIO]) -> tuple[io.FileIO, str] | None:
    """A new locked file of that name, and the name; None if another writer has it. _NoLocksError."""
    try:
        file = new(name)
    except FileExistsError:
        return None
    try:
        if _lock(file.fileno()) and folder.has(name, file.fileno()):
            return file, name
    except (_NoLocksError, OSError):
        file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder.fd)
        raise
    file.close()  # it was taken for a leftover between the two calls
    return None


def _clear(folder: Folder, name: str) -> None:
    """Remove a temporary file whose writer is dead, if that is allowed. _NoLocksError.

    Links, pipes and folders of that name are not fastio's: they stay.
    """
    with contextlib.ExitStack() as opened, contextlib.suppress(OSError):
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = opened.enter_context(Descriptor(os.path.join(folder.name, name), flags))
        if stat.S_ISREG(os.fstat(fd).st_mode) and _lock(fd) and folder.has(name, fd):
            os.unlink(name, dir_fd=folder.fd)


def _clear_unlocked(folder: Folder, base: str) -> None:
    """Remove the temporary files without a lock that have not been written to for a day."""
    for name in _names(folder, base, f"{_UNLOCKED}[0-9a-f]{{{2 * _RANDOM_NBYTES}}}|[0-{_SLOTS - 1}]"):
        with contextlib.suppress(OSError):  # another process has cleared it, or this one may not
            status = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and time.time() - status.st_mtime > _LEFTOVER_SECONDS:
                os.unlink(name, dir_fd=folder.fd)


def _names(folder: Folder, base: str, slot: str) -> Iterator[str]:
    """The temporary files of a target whose slots match a pattern."""
    if folder.readable:
        before, after = map(re.escape, _around_slot(base))
        yield from filter(re.compile(f"{before}(?:{slot}){after}").fullmatch, os.listdir(folder.fd))


def _lock(fd: int) -> bool:
    """Whether the file is locked now; False if another open file has the lock. _NoLocksError."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise _NoLocksError from error
        raise
    return True
