"""The temporary file beside a file that is to be replaced: its name, and how others see whether its writer lives.

It is held by a lock as long as its writer lives, so the next save of the same path can tell what a dead process left
behind, and clears it. On a filesystem without such locks age has to tell.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import re
import time
from collections.abc import Callable, Iterator

from fastio._native import Descriptor
from fastio.errors import TransferError
from fastio.target import Target

Opener = Callable[[str, int], int]
"""Opens a file of that name with those flags, as ``open`` asks of its own."""

# Temporary files of one target have fixed names, so leftovers are found without listing the folder. Only where more
# writers than that write at once, the others' names are random ones.
_SLOTS = 4
_RANDOM_NBYTES = 8
# What the random names of files without a lock begin with: who finds them locks none, wherever he is.
_UNLOCKED = "u"
# A writer without a lock that has written nothing for so long is dead.
_LEFTOVER_SECONDS = 24 * 3600.0
# A new file may be taken for a leftover before its writer has locked it. A filesystem on which no lock ever holds, or
# on which a file is never itself, must end in an error, and not in a loop.
_TRIES = 100
_LONGEST_NAME = 200
# Lustre without its option "flock", FUSE and NFS where nobody keeps locks.
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
_NOT_WRITABLE = (errno.EACCES, errno.EPERM)


class _NoLocksError(Exception):
    """The filesystem has no locks."""


def create(target: Target, path: str, opener: Opener | None) -> tuple[io.FileIO, str]:
    """A new file beside the target, and its name; leftovers of dead writers are cleared. TransferError names ``path``.

    It is open for reading and writing, by ``opener`` if there is one, and locked where there are locks.
    """
    before, after = _around_slot(os.path.join(target.folder, ""), target.base)
    try:
        try:
            found = _create_locked(target, before, after, opener)
        except _NoLocksError:
            _clear_unlocked(target.folder, target.base)
            name = f"{before}{_UNLOCKED}{os.urandom(_RANDOM_NBYTES).hex()}{after}"
            found = _open_new(name, opener), name
    except OSError as error:
        cure = " (make its folder writable, or save to open(path, 'wb'))" if error.errno in _NOT_WRITABLE else ""
        raise TransferError(error.errno or 0, f"creating a file beside it{cure}", path) from error
    if found is None:
        raise TransferError(errno.EBUSY, "creating a file beside it", path)
    return found


def _create_locked(target: Target, before: str, after: str, opener: Opener | None) -> tuple[io.FileIO, str] | None:
    found: tuple[io.FileIO, str] | None = None
    crowded = False
    for slot in range(_SLOTS):
        name = f"{before}{slot}{after}"
        if os.access(name, os.F_OK, follow_symlinks=False):  # half of what lexists takes
            crowded = True
            _clear(name)
        if found is None:
            found = _create(name, opener)
    for _ in range(_TRIES if found is None else 0):
        found = _create(f"{before}{os.urandom(_RANDOM_NBYTES).hex()}{after}", opener)
        if found is not None:
            break
    if crowded:
        for name in _names(target.folder, target.base, f"[0-9a-f]{{{2 * _RANDOM_NBYTES}}}"):
            _clear(name)
    return found


def _around_slot(folder: str, base: str) -> tuple[str, str]:
    """What the name of a temporary file has before its slot and after it."""
    if len(os.fsencode(base)) > _LONGEST_NAME:
        base = hashlib.blake2b(os.fsencode(base), digest_size=16).hexdigest()
    return f"{folder}.{base}.fastio-", ".tmp"


def _open_new(name: str, opener: Opener | None) -> io.FileIO:
    """A new file of that name. FileExistsError.

    Not a bare descriptor: one that an interrupt takes away, as soon as the call is back, would be open for ever, and
    its lock would keep the next save from clearing the name.
    """
    return io.FileIO(name, "x+b", opener=opener)


def _create(name: str, opener: Opener | None) -> tuple[io.FileIO, str] | None:
    """A new locked file of that name, and the name; None if another writer has it. _NoLocksError."""
    try:
        file = _open_new(name, opener)
    except FileExistsError:
        return None
    try:
        if _lock(file.fileno()) and _is_still(name, file.fileno()):
            return file, name
    except (_NoLocksError, OSError):
        file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    file.close()  # someone took it for a leftover between the two calls
    return None


def _clear(name: str) -> None:
    """Remove a temporary file that no living writer holds. _NoLocksError."""
    with contextlib.ExitStack() as opened:
        try:
            fd = opened.enter_context(Descriptor(name, os.O_RDWR | os.O_NOFOLLOW))
        except OSError:
            return  # gone meanwhile, or not ours
        if _lock(fd) and _is_still(name, fd):
            os.unlink(name)


def _clear_unlocked(folder: str, base: str) -> None:
    """Remove the temporary files that nobody has written to for long: those that found no lock to hold."""
    for name in _names(folder, base, f"{_UNLOCKED}[0-9a-f]{{{2 * _RANDOM_NBYTES}}}|[0-{_SLOTS - 1}]"):
        with contextlib.suppress(FileNotFoundError):  # somebody else has cleared it
            if time.time() - os.stat(name, follow_symlinks=False).st_mtime > _LEFTOVER_SECONDS:
                os.unlink(name)


def _names(folder: str, base: str, slot: str) -> Iterator[str]:
    """The temporary files of a target whose slots match a pattern."""
    try:
        names = os.listdir(folder)
    except PermissionError:
        return  # it may be written to, but not listed
    before, after = map(re.escape, _around_slot("", base))
    for name in filter(re.compile(f"{before}(?:{slot}){after}").fullmatch, names):
        yield os.path.join(folder, name)


def _lock(fd: int) -> bool:
    """Whether the file is locked now; False if somebody else has the lock. _NoLocksError."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise _NoLocksError from error
        raise
    return True


def _is_still(name: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(name, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False
