"""A new version of a file, invisible until it is whole: written beside the old one, then renamed over it.

At any instant the path holds the whole old file or the whole new one.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from types import TracebackType

from fastio import _native, temporary
from fastio._native import Descriptor
from fastio.errors import NotReplaceableError, TransferError
from fastio.native_errors import named
from fastio.rights import Rights
from fastio.target import find

# Below this an old file is freed in the time that a thread takes to start.
_WORTH_A_THREAD = 1 << 20
_MOUNTED = (
    "this file is a mount point of its own (as of a container's volume), over which no new file can be renamed; mount "
    "its folder instead, or name another path"
)


class Replacement:
    """The file that will take the place of ``path``. Use as a context: it is discarded unless committed.

    ``fd`` is open for reading and writing, ``temporary`` its name. Raises as :func:`fastio.target.find` does.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        _native.wait_closed()
        self._target = find(path)
        name, old = self._target.name, self._target.old
        rights = Rights(name, old) if old is not None else None
        self._file, self.temporary = temporary.create(self._target, path, rights.opener if rights is not None else None)
        self._mode = self._take_over(rights) if rights is not None else None

    @property
    def fd(self) -> int:
        """The descriptor; ValueError once it is committed or discarded."""
        return self._file.fileno()

    def __enter__(self) -> Replacement:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._file.closed:
            self._discard()

    def allocate(self, nbytes: int) -> None:
        """Set the size and reserve the blocks: a full disk shows before the first byte is written."""
        with named(self.path):
            _native.allocate(self.fd, nbytes)

    def commit(self, durable: bool) -> None:
        """Put the file in its place. With ``durable``, it survives a power cut once this returns."""
        with self._old_held():
            try:
                if self._mode is not None:
                    os.fchmod(self.fd, self._mode)
                if durable:
                    os.fsync(self.fd)
                os.rename(self.temporary, self._target.name)
            except OSError as error:
                if error.errno == errno.EBUSY:
                    raise NotReplaceableError(errno.EBUSY, _MOUNTED, self.path) from error
                raise TransferError(error.errno or 0, "fsync and rename", self.path) from error
            try:
                self._file.close()
                if durable:
                    sync_folder(self._target.folder)
            except OSError as error:
                raise TransferError(error.errno or 0, "fsync of the folder", self.path) from error

    def _take_over(self, rights: Rights) -> int | None:
        """Let the new file have the old one's rights; gives the mode that is still to come, if there is one."""
        try:
            mode = rights.take_over(self.fd)
        except BaseException as error:
            self._discard()
            if isinstance(error, OSError):
                raise TransferError(error.errno or 0, "giving it the old file's mode", self.path) from error
            raise
        return mode if mode & 0o600 != 0o600 else None

    @contextlib.contextmanager
    def _old_held(self) -> Iterator[None]:
        """Inside, the rename does not free the old file: that is left to another thread, once the new one is in place.

        The next save waits for it. Where room is scarce the rename frees it, before anybody else is told that there is
        none.
        """
        held = Descriptor(self._target.name, os.O_PATH | os.O_NOFOLLOW)
        old = 0 if self._target.old is None else self._target.old.st_size
        if old >= _WORTH_A_THREAD:
            with contextlib.suppress(OSError):  # then it is freed in the rename, too
                disk = os.statvfs(self._target.folder)
                if disk.f_bavail * disk.f_frsize >= 2 * old:
                    held.open()
        try:
            yield
        finally:
            held.close_later()

    def _discard(self) -> None:
        try:
            os.unlink(self.temporary)
        except FileNotFoundError:
            pass
        except OSError:
            self._file.truncate(0)  # the name stays, held by nobody: the next save clears it
        finally:
            self._file.close()


def write_all(new: Replacement, data: bytes) -> None:
    """Make ``data`` the contents of a new file. TransferError if the system refuses."""
    at = 0
    while at < len(data):
        try:
            at += os.pwrite(new.fd, data[at:], at)
        except OSError as error:
            raise TransferError(error.errno or 0, "write", new.path, at) from error


def sync_folder(folder: str) -> None:
    """Make what was created, renamed or removed in a folder survive a power cut."""
    with Descriptor(folder, os.O_RDONLY | os.O_DIRECTORY) as fd:
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a filesystem whose folders need no sync
                raise
