"""Opens the files and devices of a block store; files vanish when they are closed."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from dataclasses import dataclass

from fastio._native import Descriptor
from fastio.dicts import fingerprint
from fastio.errors import FastIOError, FolderMissingError, TransferError, UnsupportedError
from fastio.files import direct_io
from fastio.nvme.safety import refuse_in_use
from fastio.offload.stores.store_errors import BLOCK
from fastio.remote.urls import is_remote
from fastio.url_secrets import hide_secrets

_SPECIAL = ((stat.S_ISCHR, "character device"), (stat.S_ISFIFO, "FIFO"), (stat.S_ISSOCK, "socket"))
_NO_DATA_CHECKSUMS = ("ext2", "ext3", "ext4", "xfs")  # filesystems that compute no checksums of data
# Errors of filesystems without unnamed files, and of kernels before 3.11.
_NO_UNNAMED_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class Place:
    """A file or device of a block store. Closing an unnamed file removes it.

    Attributes:
        fd: -1 if the driver opens the device.
        claim: a namespace's block device, held exclusively; -1 if there is none.
        fixed_blocks: of 4096 bytes: a block device's size; 0 for a file.
        memory_alignment: what direct I/O, or the device's commands, require of addresses.
        drive: names the drive or filesystem below, whose size is ``drive_nbytes``.
        tolerates_changes: no checksums or parity are computed during a write: unused bytes may change meanwhile.
    """

    path: str
    fd: int = -1
    claim: int = -1
    direct: bool = True
    fixed_blocks: int = 0
    memory_alignment: int = 4
    lba_bytes: int = BLOCK
    drive: int = 0
    drive_nbytes: int = 0
    tolerates_changes: bool = True

    def close(self) -> None:
        for fd in (self.fd, self.claim):
            if fd >= 0:
                os.close(fd)


def open_place(path: str, force: str | None) -> Place:
    """Create a file without a name in a folder, or open an empty file, or a block device as a whole.

    A device is refused if it is in use, or holds data and ``force`` is not its serial number. Raises
    FolderMissingError, DeviceInUseError, ValueError for a file with contents, and TransferError.
    """
    try:
        kind = os.stat(path)
        if stat.S_ISBLK(kind.st_mode):
            refuse_in_use(path, force)
        elif not (stat.S_ISDIR(kind.st_mode) or stat.S_ISREG(kind.st_mode)):
            raise ValueError(_no_place(path, kind))
        fd, direct = _open_direct(path, kind)
    except FileNotFoundError:
        raise missing_place(path) from None
    except OSError as error:
        raise TransferError(error.errno or errno.EIO, "opening the block store", path) from None
    try:
        return _describe(fd, path, direct)
    except BaseException:
        os.close(fd)
        raise


def missing_place(path: str) -> FastIOError:
    """The error for a place at which nothing could be opened, because there is nothing."""
    if is_remote(path):
        return UnsupportedError(
            f"{hide_secrets(path)}: a store cannot be at a remote place, expected a folder of this machine, an empty "
            f"file or a device: name one"
        )
    if os.path.isdir(path):  # as /proc
        return TransferError(errno.ENOENT, "creating a file in the folder of the store", path)
    return FolderMissingError(path, "the store's folder does not exist")


def open_unnamed(folder: str, flags: int) -> Descriptor:
    """Create a file without a name in a folder, opened with these flags. Raises OSError."""
    file = Descriptor(folder, flags | os.O_TMPFILE | os.O_EXCL, 0o600)
    try:
        file.open()
        return file
    except OSError as error:
        if error.errno not in _NO_UNNAMED_FILES:
            raise
    path = os.path.join(folder, f".fastio-store-{secrets.token_hex(8)}")
    file = Descriptor(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        file.open()
    finally:  # some filesystems create the file and then refuse O_DIRECT
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    return file


def _no_place(path: str, kind: os.stat_result) -> str:
    """Return the message for a path that is neither a folder, a file nor a block device."""
    what = next((name for test, name in _SPECIAL if test(kind.st_mode)), "special file")
    cure = "name a folder, an empty file or a block device"
    if what == "character device":
        cure += " (an NVMe namespace by its passthrough device: 'nvme:/dev/ng0n1')"
    return f"{path} is a {what}, which keeps no bytes: {cure}"


def _open_direct(path: str, kind: os.stat_result) -> tuple[int, bool]:
    """Open with direct I/O, or without it if the filesystem has none for blocks of 4096 bytes."""
    try:
        fd = _open(path, kind, os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return _open(path, kind, 0), False
    try:
        memory, offset = direct_io.alignments(path, fd)
    except BaseException:
        os.close(fd)
        raise
    if memory and offset and BLOCK % memory == BLOCK % offset == 0:
        return fd, True
    os.close(fd)
    return _open(path, kind, 0), False


def _open(path: str, kind: os.stat_result, flags: int) -> int:
    flags |= os.O_RDWR | os.O_CLOEXEC
    if stat.S_ISDIR(kind.st_mode):
        return open_unnamed(path, flags).detach()
    if stat.S_ISBLK(kind.st_mode):
        return os.open(path, flags | os.O_EXCL)  # EBUSY for one that is mounted
    if kind.st_size > 0:
        raise ValueError(f"{path}: this file has contents, which a block store would overwrite; name an empty one")
    return os.open(path, flags)


def _describe(fd: int, path: str, direct: bool) -> Place:
    state = os.fstat(fd)
    alignment = direct_io.alignments(path, fd)[0] if direct else 1
    if stat.S_ISBLK(state.st_mode):
        drive = state.st_rdev
        nbytes = os.lseek(fd, 0, os.SEEK_END)
        blocks, checks = nbytes // BLOCK, False
    else:
        filesystem, drive = os.fstatvfs(fd), state.st_dev
        blocks, nbytes = 0, filesystem.f_blocks * filesystem.f_frsize
        folder = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
        checks = fingerprint.of(folder).filesystem not in _NO_DATA_CHECKSUMS
    return Place(
        path,
        fd,
        direct=direct,
        fixed_blocks=blocks,
        memory_alignment=alignment,
        drive=drive,
        drive_nbytes=nbytes,
        tolerates_changes=direct and not checks and not _wants_stable_bytes(drive),
    )


def _wants_stable_bytes(device: int) -> bool:
    """Return whether a block device (or its disk) computes checksums or parity of writes; True if unknown."""
    folder = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
    for queue in (f"{folder}/queue", f"{folder}/../queue"):  # a partition has its disk's
        with contextlib.suppress(OSError), open(f"{queue}/stable_writes") as file:
            return file.read().strip() != "0"
    return True
