"""A new version of a file, invisible until it is whole: written beside the old one, then renamed over it.

At any instant the path holds the whole old file or the whole new one. A temporary file is held by a lock as long
as its writer lives, so the next save of the same path can tell what a dead process left behind, and clears it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import re
import secrets
import stat
from collections.abc import Iterator
from types import TracebackType

from fastio import _native
from fastio.errors import TransferError
from fastio.native_errors import named
from fastio.opening import Descriptor
from fastio.target import find

# Temporary files of one target have fixed names, so leftovers are found without listing the folder. Only where more
# writers than that write at once, the others' names are random ones.
_SLOTS = 4
_RANDOM_NBYTES = 8
# A new file may be taken for a leftover before its writer has locked it. A filesystem on which no lock ever holds, or
# on which a file is never itself, must end in an error, and not in a loop.
_TRIES = 100
_LONGEST_NAME = 200
# Below this an old file is freed in the time that a thread takes to start.
_WORTH_A_THREAD = 1 << 20


class Replacement:
    """The file that will take the place of ``path``. Use as a context: it is discarded unless committed.

    ``fd`` is open for reading and writing, ``temporary`` its name. Raises as :func:`fastio.target.find` does.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        _native.wait_closed()
        self._target = find(path)
        self._file, self.temporary = self._claim()

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
                if self._target.old is not None:
                    self._keep_owner(self._target.old)
                if durable:
                    os.fsync(self.fd)
                os.rename(self.temporary, self._target.name)
            except OSError as error:
                raise TransferError(error.errno or 0, "fsync and rename", self.path) from error
            try:
                self._file.close()
                if durable:
                    sync_folder(self._target.folder)
            except OSError as error:
                raise TransferError(error.errno or 0, "fsync of the folder", self.path) from error

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
            fd = held.detach()
            if fd is not None:
                _native.close_later(fd)

    def _discard(self) -> None:
        try:
            os.unlink(self.temporary)
        except FileNotFoundError:
            pass
        except OSError:
            self._file.truncate(0)  # the name stays, held by nobody: the next save clears it
        finally:
            self._file.close()

    def _keep_owner(self, old: os.stat_result) -> None:
        new = os.fstat(self.fd)
        if new.st_mode != old.st_mode:
            os.fchmod(self.fd, stat.S_IMODE(old.st_mode))
        if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
            try:
                os.fchown(self.fd, old.st_uid, old.st_gid)
            except PermissionError:
                return  # only root may give files away; who may write the folder may replace the file

    def _claim(self) -> tuple[io.FileIO, str]:
        found: tuple[io.FileIO, str] | None = None
        crowded = False
        folder, base, _ = self._target
        before, after = _around_slot(os.path.join(folder, ""), base)
        try:
            for slot in range(_SLOTS):
                name = f"{before}{slot}{after}"
                if os.access(name, os.F_OK, follow_symlinks=False):  # half of what lexists takes
                    crowded = True
                    _clear(name)
                if found is None:
                    found = _create(name)
            for _ in range(_TRIES if found is None else 0):
                found = _create(f"{before}{secrets.token_hex(_RANDOM_NBYTES)}{after}")
                if found is not None:
                    break
            if crowded:
                _clear_slotless(folder, base)
        except OSError as error:
            raise TransferError(error.errno or 0, "creating a file beside it", self.path) from error
        if found is None:
            raise TransferError(errno.EBUSY, "creating a file beside it", self.path)
        return found


def write_all(new: Replacement, data: bytes) -> None:
    """Make ``data`` the contents of a new file. TransferError if the system refuses."""
    at = 0
    while at < len(data):
        try:
            at += os.pwrite(new.fd, data[at:], at)
        except OSError as error:
            raise TransferError(error.errno or 0, "write", new.path, at) from error


def _around_slot(folder: str, base: str) -> tuple[str, str]:
    """What the name of a temporary file has before its slot and after it."""
    if len(os.fsencode(base)) > _LONGEST_NAME:
        base = hashlib.blake2b(os.fsencode(base), digest_size=16).hexdigest()
    return f"{folder}.{base}.fastio-", ".tmp"


def _create(name: str) -> tuple[io.FileIO, str] | None:
    """A new locked file of that name, and the name; None if another writer has it.

    Not a bare descriptor: one that an interrupt takes away, as soon as the call is back, would be open for ever, and
    its lock would keep the next save from clearing the name.
    """
    try:
        file = io.FileIO(name, "x+b")
    except FileExistsError:
        return None
    if _lock(file.fileno()) and _is_still(name, file.fileno()):
        return file, name
    file.close()  # someone took it for a leftover between the two calls
    return None


def _clear(name: str) -> None:
    """Remove a temporary file that no living writer holds."""
    with contextlib.ExitStack() as opened:
        try:
            fd = opened.enter_context(Descriptor(name, os.O_RDWR | os.O_NOFOLLOW))
        except OSError:
            return  # gone meanwhile, or not ours
        if _lock(fd) and _is_still(name, fd):
            os.unlink(name)


def _clear_slotless(folder: str, base: str) -> None:
    """Remove the temporary files that found no slot and that no living writer holds."""
    try:
        names = os.listdir(folder)
    except PermissionError:
        return  # it may be written to, but not listed
    ours = re.compile(f"[0-9a-f]{{{2 * _RANDOM_NBYTES}}}".join(map(re.escape, _around_slot("", base))))
    for name in filter(ours.fullmatch, names):
        _clear(os.path.join(folder, name))


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(name: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(name, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False


def sync_folder(folder: str) -> None:
    """Make what was created, renamed or removed in a folder survive a power cut."""
    with Descriptor(folder, os.O_RDONLY | os.O_DIRECTORY) as fd:
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a filesystem whose folders need no sync
                raise
