"""One writer for a folder: a lock that dies with its process, so a stale one never blocks."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import socket
import weakref

from fastio.errors import FolderInUseError, TransferError

_NAME = ".lock"
_LONGEST = 512  # bytes of the file that name its holder


class FolderLock:
    """Held from when it is made until ``release``, or until this process ends in whatever way.

    The file stays when the lock goes: it is the lock of the system on it that counts. Children of a fork do not hold
    it. Raises FolderInUseError, naming the holder, and TransferError where no lock can be had.
    """

    def __init__(self, folder: str) -> None:
        path = os.path.join(folder, _NAME)
        try:
            self._file = io.FileIO(path, "a+b")  # no bare descriptor, which an interrupt could take away
        except OSError as error:
            raise TransferError(error.errno or 0, "opening the lock", path) from error
        fd = self._file.fileno()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(fd, _LONGEST, 0).decode("utf-8", "replace").strip()
            self.release()
            if isinstance(error, BlockingIOError):
                raise FolderInUseError(folder, holder or "another process") from None
            raise TransferError(error.errno or 0, "locking", path) from error
        with contextlib.suppress(OSError):  # a full disk: locked all the same, without a name
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        _held.add(self)

    def release(self) -> None:
        """Let others write; a second call does nothing."""
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.release()  # or Python warns of a file that nobody closed


_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # The lock is one with the parent's: a child that kept it open would hold it when the parent is gone.
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_after_fork_in_child)
