"""I/O past the page cache, with O_DIRECT: by io_uring, or by threads for reads where io_uring is forbidden.

Suitably aligned memory is transferred directly, all other memory through a few aligned staging blocks. Several threads
share a large read, one for each 16 MiB. On a virtual disk they use staging also where it is not needed, which may be
twice as fast. Queue depths and block sizes are the best measured ones: blocks of 512 KiB, 32 of them in flight for
writes (with 16, a third slower), more for reads. Larger blocks gained a few percent on one virtual disk and lost ten
times as much on another.
"""

from __future__ import annotations

import os

from fastio import config
from fastio._native import direct_read, direct_write, probe_ring
from fastio.backends import _files
from fastio.files import direct_io
from fastio.runtime.native_errors import translate_native_errors
from fastio.transports.transport import ReadRequest, TransportResult, WriteRequest

_WRITE_BLOCK, _WRITE_DEPTH = 512 << 10, 32
_READ_BLOCK, _READ_DEPTH = 512 << 10, 64  # directly into a span's memory
_STAGED_BLOCK, _STAGED_DEPTH = 1 << 20, 16  # into scattered memory; together they bound the staging memory
_COPIED = "a tensor changed while it was being saved: everything was written once more, from copies"


def check_ring() -> None:
    """Raises RefusedError where io_uring is forbidden or missing."""
    with translate_native_errors("io_uring"):
        probe_ring()


def write(request: WriteRequest) -> TransportResult:
    """Write by io_uring. Raises RefusedError where the system lacks io_uring or the filesystem O_DIRECT."""
    alignment = direct_io.alignment(request.path, request.fd)
    with _files.translate_errors(request), direct_io.DirectDescriptor(request.path, request.fd, os.O_WRONLY) as fd:
        checksums, copied = direct_write(
            fd,
            request.size,
            request.extents,
            request.patches,
            max(_WRITE_BLOCK, alignment),
            _WRITE_DEPTH,
            alignment,
            request.control,
        )
    if request.size % alignment:  # direct writes end on a block boundary
        try:
            os.ftruncate(request.fd, request.size)
        except OSError as error:
            raise _files.failure(error, "truncate", request.path, request.size) from error
    return TransportResult("direct", checksums, (_COPIED,) if copied else ())


def read(request: ReadRequest, threads: int = 0) -> TransportResult:
    """Read by io_uring if ``threads`` is 0, otherwise by so many threads, which only wait, for each reader.

    Raises RefusedError where the system lacks io_uring or the filesystem O_DIRECT.
    """
    alignment = direct_io.alignment(request.path, request.fd)
    span = request.span if alignment == direct_io.LEAST else None  # a span is aligned to pages only
    block, depth = (_READ_BLOCK, _READ_DEPTH) if span else (_STAGED_BLOCK, _STAGED_DEPTH)
    with direct_io.DirectDescriptor(request.path, request.fd, os.O_RDONLY) as fd, _files.translate_errors(request):
        checksums = direct_read(
            fd,
            request.size,
            request.extents,
            span,
            block,
            depth,
            alignment,
            threads,
            config.get("io_threads"),
            request.control,
        )
    return TransportResult("direct", checksums, filled_span=span is not None)
