"""A regular file or a block device that a volume lies on."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time

from fastio._native import Descriptor
from fastio._native import allocate as allocate_blocks
from fastio.errors import TransferError, VolumeError, VolumeInUseError
from fastio.files.free_space import free_space_named
from fastio.runtime.native_errors import translate_native_errors

_POLL_SECONDS = 0.02
_MOST = 1 << 30  # bytes of one system call


class FileDevice:
    """Reads and writes by ``pread`` and ``pwrite``, through the page cache; ``fd`` is for transports.

    The lock is ``flock``: the system's, of the open file. Children of a fork do not write.
    """

    kind = ""

    def __init__(self, place: str, write: bool, flags: int = 0) -> None:
        self.name = f"file:{place}"
        self.path = place
        self._locked_by: int | None = None  # the process
        self._is_new = bool(flags & os.O_CREAT)  # its file
        self._file = Descriptor(place, (os.O_RDWR if write else os.O_RDONLY) | os.O_NONBLOCK | flags)
        self._fd: int | None = self._file.open()
        try:
            mode = os.fstat(self.fd).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
                raise VolumeError(f"{self.name}: expected a regular file or a block device: name one")
            self.nbytes = os.lseek(self.fd, 0, os.SEEK_END)
        except BaseException:
            self.close()
            raise

    @property
    def fd(self) -> int:
        """The file descriptor. VolumeError after ``close``: its number may be another file's by then."""
        if self._fd is None:
            raise VolumeError(f"{self.name}: this volume is closed: open it again")
        return self._fd

    def read(self, offset: int, nbytes: int) -> bytes:
        found = bytearray()
        while len(found) < nbytes:
            try:
                piece = os.pread(self.fd, min(nbytes - len(found), _MOST), offset + len(found))
            except OSError as error:
                raise TransferError(error.errno or errno.EIO, "read", self.name, offset + len(found)) from error
            if not piece:
                raise TransferError(errno.EIO, "read behind its end", self.name, offset + len(found))
            found += piece
        return bytes(found)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        rest = memoryview(data).cast("B")
        while rest:
            try:
                count = os.pwrite(self.fd, rest[:_MOST], offset)
            except OSError as error:
                raise TransferError(error.errno or errno.EIO, "write", self.name, offset) from error
            if not count:
                raise TransferError(errno.EIO, "write", self.name, offset)
            rest, offset = rest[count:], offset + count

    def flush(self) -> None:
        try:
            os.fsync(self.fd)
        except OSError as error:
            raise TransferError(error.errno or errno.EIO, "flush", self.name) from error

    def lock(self, wait_seconds: float) -> None:
        end = time.monotonic() + wait_seconds
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._locked_by = os.getpid()
                return
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise VolumeInUseError(self.name, wait_seconds) from None
                time.sleep(_POLL_SECONDS)
            except OSError as error:
                raise TransferError(error.errno or errno.EIO, "lock", self.name) from error

    def close(self) -> None:
        """Close the file, and release the lock, which a process forked meanwhile would keep: it has the file, too.

        Only in the process that has the lock: a child that closes its copy leaves it.
        """
        fd, self._fd = self._fd, None
        if fd is not None and self._locked_by == os.getpid():
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
        self._locked_by = None
        self._file.close()

    def discard(self) -> None:
        if self._is_new:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
        self.close()


def open(kind: str, place: str, write: bool) -> FileDevice:
    """The device of a path. Raises FileNotFoundError and other errors as ``open`` does."""
    try:
        return FileDevice(place, write)
    except FileNotFoundError:
        problem = "there is no such volume: check the path, or make one with `fastio volume create`"
        raise FileNotFoundError(errno.ENOENT, problem, place) from None
    except NotADirectoryError:
        raise _below_a_file(place) from None


def create(kind: str, place: str, nbytes: int | None, force: str | None) -> FileDevice:
    """A new file, whose blocks are reserved; or a block device that holds nothing, or ``force`` names."""
    if os.path.exists(place) and stat.S_ISBLK(os.stat(place).st_mode):
        from fastio.nvme.safety import refuse_in_use  # not at import: 10 ms, for what few processes do

        refuse_in_use(place, force)
        return FileDevice(place, True, os.O_EXCL)
    if nbytes is None:
        raise ValueError(f"file:{place}: expected the size of the new file, such as 100GiB")
    try:
        device = FileDevice(place, True, os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        problem = "there is such a file already; remove it first, or name another path"
        raise FileExistsError(errno.EEXIST, problem, place) from None
    except FileNotFoundError:
        problem = "there is no such folder for the new volume: make it first, or check the path"
        raise FileNotFoundError(errno.ENOENT, problem, os.path.dirname(place)) from None
    except NotADirectoryError:
        raise _below_a_file(place) from None
    try:
        with free_space_named(place, nbytes), translate_native_errors(device.name):
            allocate_blocks(device.fd, nbytes)
        device.nbytes = nbytes
    except BaseException:
        device.discard()
        raise
    return device


def _below_a_file(place: str) -> NotADirectoryError:
    problem = "the path of the volume uses a file as a folder; expected a path of folders: check the path"
    return NotADirectoryError(errno.ENOTDIR, problem, place)
