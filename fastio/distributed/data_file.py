"""A rank's data file: a new name for every save, so nothing that a checkpoint in the folder refers to is ever touched.

The file is held by a lock from its creation until its writer is done with the save, however that ends. So what a dead
process left behind can be told from what a living one is about to commit, and be cleared.
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

from fastio import _native
from fastio._native import Descriptor
from fastio.errors import TransferError
from fastio.files.atomic_file import sync_folder
from fastio.files.open_file import not_regular
from fastio.runtime.native_errors import translate_native_errors

_SUFFIX = ".distcp"
# A commit writes a small file and removes some: longer than this none has the lock.
_PATIENCE_SECONDS = 60.0
_OURS = re.compile(r"__\d+_[0-9a-f]{16}\.distcp")

logger = logging.getLogger("fastio.distributed")


class DataFile:
    """A new, empty, locked file in a folder; ``prefix`` begins its name. Raises TransferError.

    ``fd`` is open for reading and writing, until :meth:`close`, or until the object is gone.
    """

    def __init__(self, folder: str, prefix: str) -> None:
        self._folder = folder
        file: io.FileIO | None = None
        try:
            while file is None:
                self.name = f"{prefix}{secrets.token_hex(8)}{_SUFFIX}"
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
        """Set the size and reserve the blocks: a full disk shows before the first byte is written."""
        with translate_native_errors(self.path):
            _native.allocate(self.fd, nbytes)

    def commit(self, durable: bool) -> None:
        """It is whole. With ``durable``, file and name survive a power cut once this returns."""
        if not durable:
            return
        try:
            os.fsync(self.fd)
            sync_folder(self._folder)
        except OSError as error:
            raise TransferError(error.errno or 0, "fsync", self.path) from error

    def discard(self) -> None:
        """Remove the file: the save has failed."""
        with contextlib.suppress(OSError):
            os.unlink(self.path)
        self.close()

    def close(self) -> None:
        """Let go of the file and its lock."""
        self._file.close()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.close()  # or Python warns of a file that nobody closed


def make_folder(path: str) -> None:
    """Make a folder, with those above it, so that they survive a power cut. TransferError if that fails."""
    missing = []
    above = path
    while above and not os.path.isdir(above):
        missing.append(above)
        above = os.path.dirname(above)
    try:
        os.makedirs(path, exist_ok=True)
        for folder in reversed(missing):
            sync_folder(os.path.dirname(folder) or os.curdir)
    except OSError as error:
        raise TransferError(error.errno or 0, "making the folder", path) from error


@contextlib.contextmanager
def one_at_a_time(folder: str) -> Iterator[bool]:
    """Hold a folder's lock. False, and it is used without, where the filesystem has no locks on folders, or where
    another program does not let go of it: whoever may read the folder may lock it.
    """
    with Descriptor(folder, os.O_RDONLY | os.O_DIRECTORY) as fd:
        alone = _lock_patiently(fd, folder)
        try:
            yield alone
        finally:
            # By name: a process forked meanwhile has the descriptor too, and closing this one would let it keep the
            # lock for as long as it lives.
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)


def _lock_patiently(fd: int, folder: str) -> bool:
    end, pause = time.monotonic() + _PATIENCE_SECONDS, 0.001
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
    """Remove data files that no checkpoint refers to: those that one did until now, and with ``leftovers`` those of
    dead writers, which are not to be told from one that another rank commits just now unless the folder is locked.

    ``replaced`` and ``kept`` are names. What cannot be removed stays, and is said in the log.
    """
    for name in os.listdir(folder):
        if name in kept or not name.endswith(_SUFFIX):
            continue
        path = os.path.join(folder, name)
        try:
            if name in replaced:
                os.unlink(path)
            elif leftovers and _OURS.fullmatch(name):
                _remove_if_left(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            logger.warning("%s: a data file of an earlier save cannot be removed: %s", path, error.strerror)


def _create(path: str) -> io.FileIO | None:
    """A new file with the lock on it; None if someone took it for a leftover before it was locked.

    Not a bare descriptor, which an interrupt could take away, with a lock that would keep it from being cleared.
    """
    file = io.FileIO(path, "x+b")
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        taken = os.fstat(file.fileno()).st_nlink == 0
    except BlockingIOError:
        taken = True
    except OSError:
        taken = False  # without locks nothing is taken for a leftover
    if not taken:
        return file
    file.close()
    return None


def _remove_if_left(path: str) -> None:
    """Remove a file that no living writer holds. OSError, and the file stays, where there are no locks."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    with Descriptor(path, flags) as fd, contextlib.suppress(BlockingIOError):
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise not_regular(path, os.fstat(fd))
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
