"""Parts of extents. Pure; all sizes are bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fastio.errors import RefusedError
from fastio.transports.transport import Extent, ReadRequest, WriteRequest


def between(extent: Extent, low: int, high: int) -> Extent:
    """The part of an extent that holds the bytes ``[low, high)`` of the file."""
    return extent._replace(offset=low, nbytes=high - low, address=extent.address + low - extent.offset)


def parts(extents: Sequence[Extent], nbytes: int) -> Iterator[tuple[int, Extent]]:
    """Cut extents at the multiples of ``nbytes`` in the file. Yields each part behind the index of its extent."""
    for index, extent in enumerate(extents):
        begin, end = extent.offset, extent.offset + extent.nbytes
        while begin < end:
            stop = min(end, (begin // nbytes + 1) * nbytes)
            yield index, between(extent, begin, stop)
            begin = stop


def check(request: ReadRequest | WriteRequest) -> None:
    """Raises RefusedError unless extents are sorted, do not overlap and lie inside the file, as native code does."""
    end = 0
    for extent in request.extents:
        if extent.offset < end or extent.nbytes < 0 or extent.offset + extent.nbytes > request.size:
            raise RefusedError(
                f"{request.path}: expected sorted, disjoint extents inside the file's {request.size} bytes, found "
                f"{extent.nbytes} bytes at offset {extent.offset}"
            )
        end = extent.offset + extent.nbytes
