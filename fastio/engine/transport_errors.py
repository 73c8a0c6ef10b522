"""What tools fail by. Somebody else's may fail in any way: to its caller that is a refusal, after which another tool is
tried, unless every tool would meet the same.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from fastio.errors import CorruptFileError, RefusedError, ToolUnavailableError, TransferError
from fastio.transports.transport import ReadRequest, TransportResult, WriteRequest

# Of the disk, the filesystem or the file, whichever way the bytes take.
_OF_EVERY_TOOL = frozenset({
    errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.ENODEV, errno.ENXIO, errno.ESTALE,
    errno.EBADMSG, errno.EUCLEAN, errno.ENODATA, errno.EREMOTEIO, errno.EILSEQ, errno.ETIMEDOUT, errno.ENOLINK,
})  # fmt: skip


def call_transport(move: Callable[[], TransportResult], request: ReadRequest | WriteRequest) -> TransportResult:
    """What ``move``, a transport's own, did of a request.

    TransferError and CorruptFileError are what every tool would meet. All else that it may raise, or give in the place
    of a Moved, is a RefusedError with that as its ``__cause__``, or the ToolUnavailableError that it raised.
    """
    try:
        moved = move()
    except (RefusedError, ToolUnavailableError, CorruptFileError):
        raise
    except TransferError as error:
        if error.errno in _OF_EVERY_TOOL:
            raise
        raise RefusedError(str(error)) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _OF_EVERY_TOOL:
            raise TransferError(error.errno, "a system call of the tool", request.path) from error
        raise RefusedError(f"{type(error).__name__}: {error}") from error
    if not isinstance(moved, TransportResult):
        raise RefusedError(f"it gave {moved!r}, expected a fastio.transports.transport.TransportResult")
    if moved.checksums is not None and len(moved.checksums) != len(request.extents):
        raise RefusedError(f"it gave {len(moved.checksums)} checksums of {len(request.extents)} extents")
    return moved
