"""Direct I/O of a file that is open already: its second descriptor, and how offset, length and memory must be aligned.

The kernel tells since Linux 6.1, by statx(STATX_DIOALIGN), if the filesystem does. Else 4096 is taken, which is enough
for nearly all.
"""

from __future__ import annotations

import errno
import math
import os

from fastio import _native
from fastio._native import Descriptor
from fastio.errors import RefusedError, TransferError
from fastio.runtime.native_errors import translate_native_errors

LEAST = 4096
_LARGEST = 1 << 20  # staging is made of blocks of at least that, where a file asks for it


def told(path: str, fd: int) -> tuple[int, int] | None:
    """The alignment of memory, and of offset and length, in bytes; both 0: no direct I/O; None: the kernel is silent.

    Raises TransferError.
    """
    with translate_native_errors(path):
        return _native.direct_alignment(fd)


def asked(path: str, fd: int) -> tuple[int, int]:
    """As :func:`told`, and 4096 for both where the kernel is silent. Raises TransferError."""
    return told(path, fd) or (LEAST, LEAST)


def alignment(path: str, fd: int) -> int:
    """What offset, length and memory are to be aligned to, in bytes: 4096 or a larger power of two.

    Raises RefusedError where the file takes no direct I/O, or asks for what nobody here aligns to; TransferError.
    """
    memory, offset = asked(path, fd)
    if not (memory and offset):
        raise RefusedError(f"{path} takes no direct I/O, its filesystem says")
    needed = math.lcm(LEAST, memory, offset)
    if _LARGEST % needed:
        raise RefusedError(
            f"direct I/O of {path} wants memory aligned to {memory} and offsets to {offset} bytes; fastio's go up to "
            f"{_LARGEST}, by powers of two"
        )
    return needed


class OpenedAgain(Descriptor):
    """The file ``fd`` once more, with O_DIRECT; ``access`` is os.O_RDONLY, O_WRONLY or O_RDWR.

    Opening it raises RefusedError where the filesystem has no such thing or the file cannot be opened a second time,
    and TransferError.
    """

    def __init__(self, path: str, fd: int, access: int) -> None:
        super().__init__(f"/proc/self/fd/{fd}", access | os.O_DIRECT)
        self._name = path

    def open(self) -> int:
        try:
            return super().open()
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                raise RefusedError(f"the filesystem of {self._name} does not take O_DIRECT") from None
            if error.errno == errno.ENOENT and os.path.exists("/proc/self/fd"):
                raise TransferError(errno.EBADF, "open with O_DIRECT", self._name) from None
            if error.errno in (errno.ENOENT, errno.EACCES, errno.EPERM):
                raise RefusedError(f"{self._name} cannot be opened again with O_DIRECT: {error.strerror}") from None
            raise TransferError(error.errno or 0, "open with O_DIRECT", self._name) from error
