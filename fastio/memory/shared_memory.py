"""Storages in shared memory, as ``torch.Tensor.share_memory_`` makes them, whose pages are there."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from typing import Any

import torch

from fastio.errors import OUT_OF_DESCRIPTORS, TransferError, errno_of, quoted
from fastio.sizes import exact_size

_FOLDER = "/dev/shm"  # where Linux keeps POSIX shared memory
_LEFT = re.compile(r"<(/torch_[0-9_]+)>")
_CURE = "free some there, mount it larger (docker run --shm-size), or load without into='shared'"
_FILE_SYSTEM = "torch.multiprocessing.set_sharing_strategy('file_system') opens no file for each tensor"


def check_room(path: str, nbytes: int) -> None:
    """Raise TransferError, which names the file, if there is no room for ``nbytes`` of shared memory."""
    try:
        found = os.statvfs(_FOLDER)
    except OSError:
        return  # torch says what is wrong with it
    if found.f_bavail * found.f_frsize < nbytes:
        raise _refused(path, nbytes, "its tensors", errno.ENOSPC)


def shared_storage(path: str, nbytes: int, name: str) -> torch.UntypedStorage:
    """A storage in shared memory for a tensor ``name`` of a file, by torch's sharing strategy. TransferError.

    A process that writes to a page that is not there ends with SIGBUS, and not every torch reserves them: they are
    reserved here.
    """
    storage, number = _made(nbytes)
    if storage is not None:
        return storage
    raise _refused(path, nbytes, quoted(name), number)  # not from the except block, whose error keeps the storage


def _refused(path: str, nbytes: int, what: str, number: int) -> TransferError:
    cure = _FILE_SYSTEM if number in OUT_OF_DESCRIPTORS else f"{_free()}: {_CURE}"
    return TransferError(number, f"reserving {exact_size(nbytes)} of shared memory for {what} ({cure})", path)


def _made(nbytes: int) -> tuple[torch.UntypedStorage | None, int]:
    """The storage, or None and the errno of the system call that failed."""
    make: Any = torch.UntypedStorage
    try:
        storage: torch.UntypedStorage = make._new_shared(nbytes)
        if nbytes:
            _reserve(storage)
    except (OSError, RuntimeError) as error:
        left = _LEFT.search(str(error))
        if left is not None:  # torch removes no segment that it could not make
            with contextlib.suppress(OSError):
                os.unlink(f"{_FOLDER}{left[1]}")
        number = errno_of(error, (*OUT_OF_DESCRIPTORS, errno.ENOSPC, errno.ENOMEM))
        if number is None:
            raise
        return None, number
    return storage, 0


def _reserve(storage: Any) -> None:
    if torch.multiprocessing.get_sharing_strategy() == "file_system":
        _, handle, _ = storage._share_filename_cpu_()
        with open(f"{_FOLDER}{os.fsdecode(handle)}", "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
    else:
        fd, nbytes = storage._share_fd_cpu_()  # the storage's own
        os.posix_fallocate(fd, 0, nbytes)


def _free() -> str:
    try:
        found = os.statvfs(_FOLDER)
    except OSError as error:
        return f"{_FOLDER}: {error.strerror}"
    return f"{_FOLDER} has {exact_size(found.f_bavail * found.f_frsize)} free"
