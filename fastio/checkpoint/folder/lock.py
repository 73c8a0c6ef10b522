"""Locks a folder for one writer. The lock ends with its process, so a stale lock never blocks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import math
import os
import re
import socket
import stat
import time
import weakref

from fastio._native import Descriptor
from fastio.errors import CheckpointError, FolderInUseError, TransferError

NAME = ".lock"
_LONGEST = 512  # bytes that are read of the file, which names the lock's holder
_OURS = re.compile(rb"(?:process \d+ on [^\n]*\n)?")
_HOLDER = re.compile(rb"process (\d+) on ([^\n]*?)(?: \(its writer process is (\d+)\))?\n")
_POLL_SECONDS = 0.05
_ENDING_SECONDS = 5.0  # a process that has ended may still hold the lock: its threads end one after the other
_log = logging.getLogger("fastio.checkpoint")
_NOT_REGULAR = (errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV)


class FolderLock:
    """Holds a folder's lock from its creation until ``release``, or until this process ends in any way.

    The lock is the system's ``flock`` on the file; the file stays when the lock is released. Children of a fork do not
    hold it. Only an empty regular file, or one that such a lock wrote, is written to, never a symbolic link's target.

    A writer process that finishes the steps of a training that died is waited for; after 5 s, a warning in the log
    says so.

    ``name`` is what messages call the folder, if that is not its path.

    Raises FolderInUseError, naming the holder; CheckpointError if something else is in the lock's place; TransferError
    if the system cannot lock.
    """

    def __init__(self, folder: str, name: str = "") -> None:
        path = os.path.join(folder, NAME)
        folder = name or folder
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
        end = telling = time.monotonic() + _ENDING_SECONDS
        while not _locked(fd, path):
            holder = os.pread(fd, _LONGEST, 0)
            writer = _writer_of_ended(holder)
            if writer is not None and is_running(writer):
                end = time.monotonic() + _ENDING_SECONDS
                if time.monotonic() > telling:
                    telling = math.inf
                    _log.warning(
                        "%s: waiting for process %d, which writes the last steps of a training that died; if it hangs, "
                        "end it: the steps that it has not written are lost then",
                        folder, writer,
                    )  # fmt: skip
            if writer is None or time.monotonic() > end:
                named = holder.decode("utf-8", "replace").strip()
                is_own = f"{named} ".startswith(f"process {os.getpid()} on {socket.gethostname()} ")
                raise FolderInUseError(folder, named or "another process", is_own)
            time.sleep(_POLL_SECONDS)
        if _OURS.fullmatch(os.pread(fd, _LONGEST, 0)) is None:
            raise _foreign(path, "holds something else than the name of a writer of checkpoints")
        self._name(fd, "")

    @staticmethod
    def _name(fd: int, more: str) -> None:
        text = f"process {os.getpid()} on {socket.gethostname()}{more}\n".encode()
        with contextlib.suppress(OSError):  # on a full disk the lock holds, but does not name its holder
            os.pwrite(fd, text, 0)
            os.ftruncate(fd, len(text))

    def name_writer(self, process: int) -> None:
        """Note a process that inherited the lock, and holds it for a while if this process dies."""
        self._name(self._file.fileno(), f" (its writer process is {process})")

    def fileno(self) -> int:
        """Return the descriptor: a process that inherits it holds the lock, too."""
        return self._file.fileno()

    def require(self) -> None:
        """Raise CheckpointError if the lock's file was removed or replaced, so that others may write."""
        try:
            is_there = os.path.samestat(os.stat(self._path, follow_symlinks=False), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise CheckpointError(
                f"{self._folder}: its {NAME} was removed or replaced while it was held, so another writer may use the "
                "folder; close this Checkpointer and make another"
            )

    def remove(self) -> None:
        """Remove the lock's file and release the lock. OSError if the system refuses."""
        try:
            os.unlink(self._path)
        finally:
            self.release()

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        self._file.close()


def _locked(fd: int, path: str) -> bool:
    """Take the lock; returns whether that was possible. TransferError if the system cannot lock."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise TransferError(error.errno or 0, "locking", path) from error
    return True


def _writer_of_ended(holder: bytes) -> int | None:
    """Return the writer process of the process that the lock's file names, if that was one of this host and ended."""
    named = _HOLDER.fullmatch(holder)
    if named is None or named[3] is None or named[2] != socket.gethostname().encode() or is_running(int(named[1])):
        return None
    return int(named[3])


def is_running(process: int) -> bool:
    """Return whether a process of this host runs; True if the system cannot tell."""
    try:
        os.kill(process, 0)
        with open(f"/proc/{process}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
    except OSError:  # of another user
        return True


def _foreign(path: str, problem: str) -> CheckpointError:
    return CheckpointError(f"{path}: {problem}, so it is not written to; remove it, or use another folder")


_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # A child shares its parent's lock: it would hold the lock after the parent's end if it kept the file open.
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_after_fork_in_child)
