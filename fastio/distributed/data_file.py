"""Makes a rank's data file, and removes those that no checkpoint refers to.

Each save uses a new name, so the files of the checkpoint in the folder are never written to. The writer holds a lock on
the file from its creation until the save ends in any way. So files of dead processes can be told from files that a
running one will commit, and be removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator

from fastio._native import Descriptor
from fastio._native import allocate as allocate_blocks
from fastio.errors import TransferError
from fastio.files.atomic_file import sync_folder
from fastio.files.open_file import not_regular
from fastio.runtime.native_errors import translate_native_errors

_SUFFIX = ".distcp"
# A commit writes a small file and removes some: no save holds the lock for longer than this.
_LOCK_TIMEOUT_SECONDS = 60.0
_OURS = re.compile(r"__\d+_[0-9a-f]{16}\.distcp")
PART_SUFFIX = ".safetensors.part"
_PART = re.compile(r"__\d+_[0-9a-f]{16}\.safetensors\.part")

logger = logging.getLogger("fastio.distributed")


class DataFile:
    """A new, empty, locked file in a folder; its name begins with ``prefix``. TransferError if it cannot be made.

    ``fd`` is open for reading and writing until :meth:`close`, or until the object is deleted.
    """

    def __init__(self, folder: str, prefix: str, suffix: str = _SUFFIX) -> None:
        self._folder = folder
        file: io.FileIO | None = None
        try:
            while file is None:
                self.name = f"{prefix}{secrets.token_hex(8)}{suffix}"
                self.path = os.path.join(folder, self.name)
                file = _create(self.path)
        except OSError as error:
            raise TransferError(error.errno or 0, "creating a data file", self.path) from error
        self._file = file

    @property
    def fd(self) -> int:
        """The descriptor; ValueError once it is closed."""
        return self._file.fileno()

    def allocate(self, nbytes: int) -> None:
        """Set the size and reserve the blocks, so that a full disk is detected before the first byte is written."""
        with translate_native_errors(self.path):
            allocate_blocks(self.fd, nbytes)

    def commit(self, durable: bool) -> None:
        """Complete the file. With ``durable``, its data and name survive a power cut once this returns."""
        if not durable:
            return
        try:
            os.fsync(self.fd)
            sync_folder(self._folder)
        except OSError as error:
            raise TransferError(error.errno or 0, "fsync", self.path) from error

    def discard(self) -> None:
        """Remove the file after a failed save."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        self.close()

    def close(self) -> None:
        """Close the file, which releases its lock."""
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()  # otherwise Python issues a ResourceWarning


class PartFile(DataFile):
    """A data file under a name that no reader takes for a checkpoint's, until the coordinator renames it.

    It is removed when it is closed, or the object is deleted, in the process that made it, unless it was renamed.
    """

    def __init__(self, folder: str, prefix: str) -> None:
        self._process = os.getpid()
        super().__init__(folder, prefix, PART_SUFFIX)

    def close(self) -> None:
        """Remove the file, unless it was renamed, and close it."""
        if os.getpid() == self._process:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        super().close()


def remove_parts(folder: str) -> None:
    """Remove the files of :class:`PartFile` that dead writers left in a folder."""
    with folder_lock(folder) as is_locked:
        for name in os.listdir(folder) if is_locked else ():
            if _PART.fullmatch(name):
                with contextlib.suppress(OSError):
                    _remove_if_unlocked(os.path.join(folder, name))


@contextlib.contextmanager
def folder_lock(folder: str) -> Iterator[bool]:
    """Hold a folder's lock; yields whether it is held.

    It is not held if the file system cannot lock folders, or if another program keeps the lock too long: any program
    that can read the folder can lock it.
    """
    with Descriptor(folder, os.O_RDONLY | os.O_DIRECTORY) as fd:
        is_locked = _lock_with_timeout(fd, folder)
        try:
            yield is_locked
        finally:
            # Explicitly: a process forked meanwhile has the descriptor too, and would keep the lock if this one were
            # only closed.
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)


def _lock_with_timeout(fd: int, folder: str) -> bool:
    end, pause = time.monotonic() + _LOCK_TIMEOUT_SECONDS, 0.001
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                logger.warning("%s: saved without its lock, which another program holds for long", folder)
                return False
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        except OSError:
            return False


def clear(folder: str, replaced: set[str], kept: set[str], *, leftovers: bool) -> None:
    """Remove the data files named in ``replaced``, and with ``leftovers`` those of dead writers, but none in ``kept``.

    ``leftovers`` requires the folder's lock: without it, a file that another rank is committing looks like a leftover.
    A file that cannot be removed stays, and a warning is logged.
    """
    for name in os.listdir(folder):
        if name in kept or not name.endswith(_SUFFIX):
            continue
        path = os.path.join(folder, name)
        try:
            if name in replaced:
                os.unlink(path)
            elif leftovers and _OURS.fullmatch(name):
                _remove_if_unlocked(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            logger.warning("%s: a data file of an earlier save cannot be removed: %s", path, error.strerror)


def _create(path: str) -> io.FileIO | None:
    """Create and lock a file; None if another process removed it as a leftover before it was locked.

    Not a bare descriptor: an interrupt could leak it, and its lock would keep the file from being removed.
    """
    file = io.FileIO(path, "x+b")
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_removed = os.fstat(file.fileno()).st_nlink == 0
    except BlockingIOError:
        is_removed = True
    except OSError:
        is_removed = False  # without locks no file is removed as a leftover
    if not is_removed:
        return file
    file.close()
    return None


def _remove_if_unlocked(path: str) -> None:
    """Remove a file that no running writer has locked. OSError, and the file stays, if there are no locks."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    with Descriptor(path, flags) as fd, contextlib.suppress(BlockingIOError):
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise not_regular(path, os.fstat(fd))
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
