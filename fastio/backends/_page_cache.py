"""I/O through the page cache, by native threads; checksums are computed during the transfer."""

from __future__ import annotations

from fastio._native import cached_read, cached_write
from fastio.backends import _files
from fastio.transports.transport import ReadRequest, TransportResult, WriteRequest

# Measured: a write block must stay in the processor's cache from the time it is gathered until the kernel copies it.
# So must the huge page that a read faults in, from the time it is cleared until it is filled.
_WRITE_BLOCK = 512 << 10
_READ_BLOCK = 2 << 20


def write(request: WriteRequest, threads: int = 1) -> TransportResult:
    """Write from a block of memory that is copied, or from an extent's own where it needs no checksum."""
    with _files.translate_errors(request):
        checksums = cached_write(
            request.fd,
            request.size,
            request.extents,
            request.patches,
            _WRITE_BLOCK,
            threads,
            request.durable,
            request.control,
        )
    return TransportResult("cached", checksums)


def read(request: ReadRequest, threads: int = 1, cold: bool = False) -> TransportResult:
    """Read straight to the extents' memory. ``cold``: a single thread advises the kernel what to read ahead."""
    span = request.span
    with _files.translate_errors(request):
        checksums = cached_read(
            request.fd, request.size, request.extents, span, _READ_BLOCK, threads, cold, request.control
        )
    return TransportResult("cached", checksums, filled_span=span is not None)
