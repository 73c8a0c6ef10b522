"""Files past the page cache, with O_DIRECT: by io_uring, and reads by threads where that is forbidden.

Memory that the device can reach goes as it is; everything else through a few aligned staging blocks. Reads from 32 MiB
on are shared by two threads, and measure on the way whether this device is faster through staging even where it could
do without: a virtual disk may be, twice. Queue depths and block sizes are those that won by measurement: blocks of
512 KiB, of which reads want more in flight. What is gained by larger ones on one virtual disk (a few percent) is lost
tenfold on another.
"""

from __future__ import annotations

import os

from fastio import _native
from fastio.errors import TransferError
from fastio.files import direct_io
from fastio.runtime.native_errors import translate_native_errors
from fastio.transports.transport import ReadRequest, TransportResult, WriteRequest

_WRITE_BLOCK, _WRITE_DEPTH = 512 << 10, 16
_READ_BLOCK, _READ_DEPTH = 512 << 10, 64  # into a span: straight into its memory
_STAGED_BLOCK, _STAGED_DEPTH = 1 << 20, 16  # scattered memory: the staging is bounded
_COPIED = "a tensor changed while it was being saved: everything was written once more, from copies"


def check_ring() -> None:
    """RefusedError where io_uring is forbidden or missing."""
    with translate_native_errors("io_uring"):
        _native.probe_ring()


def write(request: WriteRequest) -> TransportResult:
    """Write by io_uring. RefusedError where the system has none, or the filesystem no O_DIRECT."""
    alignment = direct_io.alignment(request.path, request.fd)
    with translate_native_errors(request.path), direct_io.OpenedAgain(request.path, request.fd, os.O_WRONLY) as fd:
        checksums, copied = _native.direct_write(
            fd,
            request.size,
            request.extents,
            request.patches,
            max(_WRITE_BLOCK, alignment),
            _WRITE_DEPTH,
            alignment,
            request.control,
        )
    if request.size % alignment:
        _truncate(request)
    return TransportResult("direct", checksums, (_COPIED,) if copied else ())


def read(request: ReadRequest, threads: int = 0) -> TransportResult:
    """Read by io_uring, or by so many threads.

    RefusedError where the system has no such thing, or the filesystem no O_DIRECT.
    """
    alignment = direct_io.alignment(request.path, request.fd)
    span = request.span if alignment == direct_io.LEAST else None  # it is aligned to pages, and to nothing larger
    block, depth = (_READ_BLOCK, _READ_DEPTH) if span else (_STAGED_BLOCK, _STAGED_DEPTH)
    with direct_io.OpenedAgain(request.path, request.fd, os.O_RDONLY) as fd, translate_native_errors(request.path):
        checksums = _native.direct_read(
            fd, request.size, request.extents, span, block, depth, alignment, threads, request.control
        )
    return TransportResult("direct", checksums, filled_span=span is not None)


def _truncate(request: WriteRequest) -> None:
    """Direct writes end on a block: cut off what is too long."""
    try:
        os.ftruncate(request.fd, request.size)
    except OSError as error:
        raise TransferError(error.errno or 0, "truncate", request.path, request.size) from error
