"""Atomic replacement of a file: the new version is written beside the old one, then renamed over it.

At any time the path holds the complete old file or the complete new one.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Iterator
from types import TracebackType

from fastio._native import Descriptor, wait_closed
from fastio._native import allocate as allocate_blocks
from fastio.errors import NotReplaceableError, TransferError
from fastio.files import temporary_file
from fastio.files.full_write import write_all
from fastio.files.permissions import FilePermissions
from fastio.files.save_target import find
from fastio.runtime.native_errors import translate_native_errors

# Bytes: freeing a smaller old file takes no longer than starting a thread.
_WORTH_A_THREAD = 1 << 20
_MOUNTED = (
    "this file is a mount point of its own (as of a container's volume), over which no new file can be renamed; mount "
    "its folder instead, or name another path"
)
_SWAPPED = (
    "while it was saved, another program removed or replaced the temporary file {name!r} beside it; save into a folder "
    "that only you may write to, and keep programs that tidy up away from it"
)


class AtomicFile:
    """A temporary file that replaces ``path`` on ``commit``. Use as a context: it is discarded unless committed.

    ``fd`` is open for reading and writing. If ``path`` is a symbolic link, the file behind it is replaced, or without
    ``follow_link`` the link itself. Raises as :func:`fastio.files.save_target.find` does.

    Other users with write access to the folder may also replace the file, before and after the save. Two things are
    guaranteed: only the file created here is written to and gets new permissions, and the commit raises
    NotReplaceableError if the temporary name has become another file's.
    """

    def __init__(self, path: str, follow_link: bool = True) -> None:
        self.path = path
        wait_closed()
        self._target = find(path, follow_link)
        name, old = self._target.name, self._target.old
        try:
            self._folder = temporary_file.Folder(self._target.folder)
        except OSError as error:
            raise TransferError(error.errno or 0, "opening its folder", path) from error
        self._new = temporary_file.TemporaryFile(self._folder)
        self._mode: int | None = None
        try:
            if old is None:
                self._new.create(self._target, path)
            else:
                permissions = FilePermissions(name, old)
                self._new.create(self._target, path, permissions.first_mode)
                self._mode = self._copy_permissions(permissions)
        except BaseException:
            self._discard()
            raise

    @property
    def fd(self) -> int:
        """The descriptor. Raises ValueError after a commit or discard."""
        return self.file.fileno()

    @property
    def file(self) -> io.FileIO:
        """The file object of ``fd``, positioned at the beginning of the file."""
        return self._new.file

    @property
    def temporary(self) -> str:
        """The file's name in its folder until it is committed."""
        return self._new.name

    def __enter__(self) -> AtomicFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self.file.closed:
            self._discard()

    def allocate(self, nbytes: int) -> None:
        """Set the size and reserve the blocks: a full disk is reported before the first byte is written."""
        with translate_native_errors(self.path):
            allocate_blocks(self.fd, nbytes)

    def fill(self, content: bytes) -> None:
        """Write the whole file. TransferError if the system refuses."""
        self.allocate(len(content))
        write_all(self.path, self.fd, memoryview(content), 0)

    def commit(self, durable: bool) -> None:
        """Rename the file to ``path``. With ``durable``, it survives a power cut once this returns."""
        with self._old_file_open():
            try:
                if self._mode is not None:
                    os.fchmod(self.fd, self._mode)
                if durable:
                    os.fsync(self.fd)
                self._rename()
            except TransferError:
                raise
            except OSError as error:
                if error.errno == errno.EBUSY:
                    raise NotReplaceableError(errno.EBUSY, _MOUNTED, self.path) from error
                raise TransferError(error.errno or 0, "fsync and rename", self.path) from error
            try:
                self.file.close()
                if durable:
                    self._sync_folder()
                self._folder.close()
            except OSError as error:
                raise TransferError(error.errno or 0, "fsync of the folder", self.path) from error

    def _rename(self) -> None:
        """Rename the file. Raises NotReplaceableError if the temporary name has become another file's."""
        folder, base = self._folder, self._target.base
        if not folder.has(self.temporary, self.fd):
            raise NotReplaceableError(errno.ESTALE, _SWAPPED.format(name=self.temporary), self.path)
        os.rename(self.temporary, base, src_dir_fd=folder.fd, dst_dir_fd=folder.fd)
        # If our file has no name any more, the next save of this path has replaced it, which is no error.
        if not folder.has(base, self.fd) and os.fstat(self.fd).st_nlink:
            raise NotReplaceableError(errno.ESTALE, _SWAPPED.format(name=self.temporary), self.path)

    def _sync_folder(self) -> None:
        if self._folder.readable:
            _sync(self._folder.fd)
        else:
            os.sync()  # sync everything: an unreadable folder has no descriptor for fsync

    def _copy_permissions(self, permissions: FilePermissions) -> int | None:
        """Give the new file the old one's permissions; returns a mode if it must be set at the commit."""
        try:
            mode = permissions.copy_to(self.fd)
        except OSError as error:
            raise TransferError(error.errno or 0, "giving it the old file's mode", self.path) from error
        return mode if mode & 0o600 != 0o600 else None

    @contextlib.contextmanager
    def _old_file_open(self) -> Iterator[None]:
        """Inside, the old file stays open, so the rename does not free it; another thread frees it afterwards.

        The next save waits for that thread. If the disk is nearly full, the rename itself frees the file, so that no
        other program finds the disk full meanwhile.
        """
        held = Descriptor(self._target.name, os.O_PATH | os.O_NOFOLLOW)
        old = 0 if self._target.old is None else self._target.old.st_size
        if old >= _WORTH_A_THREAD:
            with contextlib.suppress(OSError):  # then the rename frees it
                disk = os.statvfs(self._folder.fd)
                if disk.f_bavail * disk.f_frsize >= 2 * old:
                    held.open()
        try:
            yield
        finally:
            held.close_later()

    def _discard(self) -> None:
        try:
            self._new.discard()
        finally:
            self._folder.close()


def write_durably(path: str, content: bytes) -> None:
    """Replace a small file in one step, durably. Raises as :class:`AtomicFile` does."""
    with AtomicFile(path) as new:
        new.fill(content)
        new.commit(durable=True)


def sync_folder(folder: str) -> None:
    """Make files' creation, renaming and removal in a folder survive a power cut."""
    with Descriptor(folder, os.O_RDONLY | os.O_DIRECTORY) as fd:
        _sync(fd)


def _sync(folder: int) -> None:
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: the filesystem's folders need no sync
            raise
