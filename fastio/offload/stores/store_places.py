"""Opens the files and devices of a block store; files vanish when they are closed."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from fastio._native import Descriptor
from fastio.dicts import fingerprint
from fastio.errors import FolderMissingError, TransferError
from fastio.files import direct_io
from fastio.nvme.safety import refuse_in_use

_BLOCK = 4096
_SPECIAL = ((stat.S_ISCHR, "character device"), (stat.S_ISFIFO, "FIFO"), (stat.S_ISSOCK, "socket"))
_NO_DATA_CHECKSUMS = ("ext2", "ext3", "ext4", "xfs")  # filesystems that compute no checksums of data
# Errors of filesystems without unnamed files, and of kernels before 3.11.
_NO_UNNAMED_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class Place:
    """An open file or block device.

    ``fixed_blocks`` of 4096 bytes is a device's size, 0 for a file. ``drive`` and ``drive_nbytes`` are the device
    number and the size of the drive or filesystem below. ``memory_alignment`` is what direct I/O requires of addresses.
    ``tolerates_changes``: no checksums or parity are computed during a write, so unused bytes may change meanwhile.
    """

    fd: int
    path: str
    direct: bool
    fixed_blocks: int
    memory_alignment: int
    drive: int
    drive_nbytes: int
    tolerates_changes: bool


def open_places(paths: Sequence[str | os.PathLike[str]], force: str | None = None) -> list[Place]:
    """Open all places or none.

    In a folder, creates a file without a name. Uses an empty file as it is, and a block device whole: never one in use,
    and one that holds data only if ``force`` is its serial number. Raises FolderMissingError, DeviceInUseError,
    ValueError for a file with contents, and TransferError.
    """
    places: list[Place] = []
    try:
        for path in paths:
            places.append(_open_place(os.fspath(path), force))
    except BaseException:
        close_places(places)
        raise
    return places


def close_places(places: Sequence[Place]) -> None:
    """Close them; unnamed files vanish."""
    for place in places:
        os.close(place.fd)


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


def _open_place(path: str, force: str | None) -> Place:
    try:
        kind = os.stat(path)
        if stat.S_ISBLK(kind.st_mode):
            refuse_in_use(path, force)
        elif not (stat.S_ISDIR(kind.st_mode) or stat.S_ISREG(kind.st_mode)):
            raise ValueError(_no_place(path, kind))
        fd, direct = _open_direct(path, kind)
    except FileNotFoundError:
        raise FolderMissingError(path, "the store's folder does not exist") from None
    except OSError as error:
        raise TransferError(error.errno or errno.EIO, "opening the block store", path) from None
    try:
        return _describe(fd, path, direct)
    except BaseException:
        os.close(fd)
        raise


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
    if memory and offset and _BLOCK % memory == _BLOCK % offset == 0:
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
        nbytes = os.lseek(fd, 0, os.SEEK_END)
        tolerates = direct and not _wants_stable_bytes(state.st_rdev)
        return Place(fd, path, direct, nbytes // _BLOCK, alignment, state.st_rdev, nbytes, tolerates)
    filesystem = os.fstatvfs(fd)
    drive_nbytes = filesystem.f_blocks * filesystem.f_frsize
    folder = path if os.path.isdir(path) else os.path.dirname(os.path.abspath(path))
    tolerates = (
        direct and fingerprint.of(folder).filesystem in _NO_DATA_CHECKSUMS and not _wants_stable_bytes(state.st_dev)
    )
    return Place(fd, path, direct, 0, alignment, state.st_dev, drive_nbytes, tolerates)


def _wants_stable_bytes(device: int) -> bool:
    """Return whether a block device (or its disk) computes checksums or parity of writes; True if unknown."""
    folder = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
    for queue in (f"{folder}/queue", f"{folder}/../queue"):  # a partition has its disk's
        with contextlib.suppress(OSError), open(f"{queue}/stable_writes") as file:
            return file.read().strip() != "0"
    return True
