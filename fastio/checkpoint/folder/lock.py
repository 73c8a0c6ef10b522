"""Locks a folder for one writer. The lock ends with its process, so a stale lock never blocks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import stat
import weakref

from fastio._native import Descriptor
from fastio.errors import CheckpointError, FolderInUseError, TransferError

_NAME = ".lock"
_LONGEST = 512  # bytes that are read of the file, which names the lock's holder
_OURS = re.compile(rb"(?:process \d+ on [^\n]*\n)?")
_NOT_REGULAR = (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV)


class FolderLock:
    """Holds a folder's lock from its creation until ``release``, or until this process ends in any way.

    The lock is the system's ``flock`` on the file; the file stays when the lock is released. Children of a fork do not
    hold it. Only an empty regular file, or one that such a lock wrote, is written to, never a symbolic link's target.

    Raises FolderInUseError, naming the holder; CheckpointError if something else is in the lock's place; TransferError
    if the system cannot lock.
    """

    def __init__(self, folder: str) -> None:
        path = os.path.join(folder, _NAME)
        # Descriptor, because an interrupt could leak a bare descriptor. O_NONBLOCK, because opening a pipe would wait.
        self._path, self._folder = path, folder
        self._file = Descriptor(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fd = self._file.open()
        except OSError as error:
            if error.errno in _NOT_REGULAR:
                raise _foreign(path, "is a link or no regular file") from None
            raise TransferError(error.errno or 0, "opening the lock", path) from error
        try:
            self._hold(path, folder, fd)
        except BaseException:
            self.release()
            raise
        _held.add(self)

    def _hold(self, path: str, folder: str, fd: int) -> None:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _foreign(path, "is no regular file")
        holder = os.pread(fd, _LONGEST, 0)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUseError(folder, holder.decode("utf-8", "replace").strip() or "another process") from None
        except OSError as error:
            raise TransferError(error.errno or 0, "locking", path) from error
        if _OURS.fullmatch(os.pread(fd, _LONGEST, 0)) is None:
            raise _foreign(path, "holds something else than the name of a writer of checkpoints")
        with contextlib.suppress(OSError):  # on a full disk the lock holds, but does not name its holder
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def require(self) -> None:
        """Raise CheckpointError if the lock's file was removed or replaced, so that others may write."""
        try:
            is_there = os.path.samestat(os.stat(self._path, follow_symlinks=False), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise CheckpointError(
                f"{self._folder}: its {_NAME} was removed or replaced while it was held, so another writer may use the "
                "folder; close this Checkpointer and make another"
            )

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        self._file.close()


def _foreign(path: str, problem: str) -> CheckpointError:
    return CheckpointError(f"{path}: {problem}, so it is not written to; remove it, or use another folder")


_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # A child shares its parent's lock: it would hold the lock after the parent's end if it kept the file open.
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_after_fork_in_child)
