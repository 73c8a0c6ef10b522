"""Maps transport exceptions: try another tool, or fail the call."""

from __future__ import annotations

import errno

from fastio.errors import CorruptFileError, RefusedError, ToolUnavailableError, TransferError
from fastio.transports import registry
from fastio.transports.transport import ReadRequest, TransportResult, WriteRequest

# Errors of the disk, the filesystem or the file: every tool would meet them.
_FAILS_WITH_EVERY_TOOL = frozenset({
    errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.ENODEV, errno.ENXIO, errno.ESTALE,
    errno.EBADMSG, errno.EUCLEAN, errno.ENODATA, errno.EREMOTEIO, errno.EILSEQ, errno.ETIMEDOUT, errno.ENOLINK,
})  # fmt: skip


def call_transport(tool: str, request: ReadRequest | WriteRequest) -> TransportResult:
    """Have the transport of a tool do a request, and check what it returns.

    TransferError and CorruptFileError: every tool would fail with them. All else that a transport raises, or returns
    instead of a :class:`fastio.transports.transport.TransportResult`, becomes a RefusedError with that as its
    ``__cause__``, or stays the ToolUnavailableError that it was.
    """
    transport = registry.get(tool)
    try:
        moved = transport.write(request) if isinstance(request, WriteRequest) else transport.read(request)
    except (RefusedError, ToolUnavailableError, CorruptFileError):
        raise
    except TransferError as error:
        if error.errno in _FAILS_WITH_EVERY_TOOL:
            raise
        raise RefusedError(str(error)) from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FAILS_WITH_EVERY_TOOL:
            raise TransferError(error.errno, "a system call of the tool", request.path) from error
        raise RefusedError(f"{type(error).__name__}: {error}") from error
    if not isinstance(moved, TransportResult):
        raise RefusedError(f"it gave {moved!r}, expected a fastio.transports.transport.TransportResult")
    if moved.checksums is not None and len(moved.checksums) != len(request.extents):
        raise RefusedError(f"it gave {len(moved.checksums)} checksums of {len(request.extents)} extents")
    return moved
