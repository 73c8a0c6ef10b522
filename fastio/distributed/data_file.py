"""A rank's data file: a new name for every save, so nothing that a checkpoint in the folder refers to is ever touched.

The file is held by a lock from its creation until its writer is done with the save, however that ends. So what a dead
process left behind can be told from what a living one is about to commit, and be cleared.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
from collections.abc import Iterator

from fastio import _native
from fastio.errors import TransferError
from fastio.native_errors import named
from fastio.replacement import sync_folder

_SUFFIX = ".distcp"
_OURS = re.compile(r"__\d+_[0-9a-f]{16}\.distcp")

logger = logging.getLogger("fastio.distributed")


class DataFile:
    """A new, empty, locked file in a folder; ``prefix`` begins its name. Raises TransferError.

    ``fd`` is open for reading and writing, until :meth:`close`, or until the object is gone.
    """

    def __init__(self, folder: str, prefix: str) -> None:
        self._folder = folder
        self.fd = -1
        try:
            while self.fd < 0:
                self.name = f"{prefix}{secrets.token_hex(8)}{_SUFFIX}"
                self.path = os.path.join(folder, self.name)
                self.fd = _create(self.path)
        except OSError as error:
            raise TransferError(error.errno or 0, "creating a data file", self.path) from error

    def allocate(self, nbytes: int) -> None:
        """Set the size and reserve the blocks: a full disk shows before the first byte is written."""
        with named(self.path):
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
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def make_folder(path: str) -> None:
    """Make a folder, with those above it, so that they survive a power cut. TransferError if that fails."""
    missing = []
    above = os.path.abspath(path)
    while not os.path.isdir(above) and os.path.dirname(above) != above:
        missing.append(above)
        above = os.path.dirname(above)
    try:
        os.makedirs(path, exist_ok=True)
        for folder in reversed(missing):
            sync_folder(os.path.dirname(folder))
    except OSError as error:
        raise TransferError(error.errno or 0, "making the folder", path) from error


@contextlib.contextmanager
def one_at_a_time(folder: str) -> Iterator[None]:
    """Hold a folder's lock. A filesystem without locks on folders is used without."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def clear(folder: str, replaced: set[str], kept: set[str]) -> None:
    """Remove data files that no checkpoint refers to: those that one did until now, and those of dead writers.

    ``replaced`` and ``kept`` are names. What cannot be removed stays, and is said in the log.
    """
    for name in os.listdir(folder):
        if name in kept or not name.endswith(_SUFFIX):
            continue
        path = os.path.join(folder, name)
        try:
            if name in replaced:
                os.unlink(path)
            elif _OURS.fullmatch(name):
                _remove_if_left(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            logger.warning("%s: a data file of an earlier save cannot be removed: %s", path, error.strerror)


def _create(path: str) -> int:
    """A new file with the lock on it; -1 if someone took it for a leftover before it was locked."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        taken = os.fstat(fd).st_nlink == 0
    except BlockingIOError:
        taken = True
    except OSError:
        taken = False  # without locks nothing is taken for a leftover
    if not taken:
        return fd
    os.close(fd)
    return -1


def _remove_if_left(path: str) -> None:
    """Remove a file that no living writer holds. OSError, and the file stays, where there are no locks."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except BlockingIOError:
        return
    finally:
        os.close(fd)
