"""Direct I/O of an open file: a second descriptor with O_DIRECT, and the alignment of offset, length and memory.

Linux reports the alignment since 6.1, by statx(STATX_DIOALIGN), if the filesystem supports that. Otherwise 4096 is
assumed, which suffices for nearly all filesystems.
"""

from __future__ import annotations

import errno
import math
import os

from fastio._native import Descriptor, direct_alignment
from fastio.errors import RefusedError, TransferError
from fastio.runtime.native_errors import translate_native_errors

LEAST = 4096
_LARGEST = 1 << 20  # staging blocks can be aligned to that, where a file requires it


def kernel_alignment(path: str, fd: int) -> tuple[int, int] | None:
    """The kernel's alignment of memory, and of offset and length, in bytes; None if the kernel does not report it.

    Both are 0 if the file does not support direct I/O. Raises TransferError.
    """
    with translate_native_errors(path):
        return direct_alignment(fd)


def alignments(path: str, fd: int) -> tuple[int, int]:
    """:func:`kernel_alignment`, with 4096 for both if the kernel does not report them. Raises TransferError."""
    return kernel_alignment(path, fd) or (LEAST, LEAST)


def alignment(path: str, fd: int) -> int:
    """The common alignment of offset, length and memory, in bytes: 4096 or a larger power of two.

    Raises RefusedError if the file does not support direct I/O or needs more than 1 MiB; TransferError.
    """
    memory, offset = alignments(path, fd)
    if not (memory and offset):
        raise RefusedError(f"{path} takes no direct I/O, its filesystem says")
    needed = math.lcm(LEAST, memory, offset)
    if _LARGEST % needed:
        raise RefusedError(
            f"direct I/O of {path} needs memory aligned to {memory} and offsets to {offset} bytes; fastio supports "
            f"powers of two up to {_LARGEST}"
        )
    return needed


class DirectDescriptor(Descriptor):
    """A second descriptor of the file ``fd``, with O_DIRECT; ``access`` is os.O_RDONLY, O_WRONLY or O_RDWR.

    ``open`` raises RefusedError if the filesystem does not support O_DIRECT or the file cannot be opened a second time,
    otherwise TransferError.
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
