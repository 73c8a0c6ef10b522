"""What a file asks of direct I/O: how offset, length and memory must be aligned.

The kernel tells since Linux 6.1, by statx(STATX_DIOALIGN), if the filesystem does. Else 4096 is taken, which is enough
for nearly all.
"""

from __future__ import annotations

import math

from fastio import _native
from fastio.errors import RefusedError
from fastio.native_errors import named

LEAST = 4096
_LARGEST = 1 << 20  # staging is made of blocks of at least that, where a file asks for it


def told(path: str, fd: int) -> tuple[int, int] | None:
    """The alignment of memory, and of offset and length, in bytes; both 0: no direct I/O; None: the kernel is silent.

    Raises TransferError.
    """
    with named(path):
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
