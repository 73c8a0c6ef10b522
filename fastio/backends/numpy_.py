"""``numpy``: one thread, the page cache, numpy arrays that share the extents' memory.

Only the kernel copies bytes, unless a save needs checksums: then arrays are copied to a block that stays in the
processor's cache, and are checksummed and written from there.
``ndarray.tofile`` and ``numpy.fromfile`` use C's buffered files, which lose the errno of a failed write and read into
new memory. So the arrays are passed to the system calls instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastio._native import crc32_at
from fastio.backends import _files, _staged
from fastio.backends._windows import check, part, windows
from fastio.files.full_write import write_all
from fastio.memory import raw_memory
from fastio.transports.transport import Capabilities, Extent, ReadRequest, TransportResult, WriteRequest

if TYPE_CHECKING:
    import numpy.typing as npt

_WINDOW = 8 << 20
_BLOCK = 512 << 10


class NumpyTransport:
    """Buffered reads and writes of whole arrays, host memory only."""

    name = "numpy"
    capabilities = Capabilities(checksums=True)

    def write(self, request: WriteRequest) -> TransportResult:
        """Write ``request.extents``. Raises as :class:`fastio.transports.transport.Transport` says."""
        check(request)
        if request.patches or any(extent.checksum for extent in request.extents):
            return TransportResult("cached", _staged.write(request, _BLOCK, _gather))
        for window in windows(request.extents, _WINDOW):
            _files.stop_if_cancelled(request.control, request.path)
            for piece in window.pieces:
                source = _array(part(request.extents, piece).address, piece.nbytes)
                write_all(request.path, request.fd, source.data, piece.offset)
            request.control.advance(window.nbytes)
        return TransportResult("cached", [0] * len(request.extents))

    def read(self, request: ReadRequest) -> TransportResult:
        """Fill the memory of ``request.extents``. Raises as :class:`fastio.transports.transport.Transport` says."""
        check(request)
        _files.check_length(request)
        checksums = [0] * len(request.extents)
        span = request.span
        at = span.offset if span is not None else 0
        for window in windows(request.extents, _WINDOW):
            _files.stop_if_cancelled(request.control, request.path)
            if span is not None:  # also the bytes between extents
                name = request.extents[window.pieces[0].extent].name
                target = _array(span.address + at - span.offset, window.end - at)
                _files.read_all(request.path, request.fd, target.data, at, name)
                at = window.end
            else:
                for piece in window.pieces:
                    extent = part(request.extents, piece)
                    target = _array(extent.address, extent.nbytes)
                    _files.read_all(request.path, request.fd, target.data, extent.offset, extent.name)
            for piece in window.pieces:
                extent = part(request.extents, piece)
                if extent.checksum:
                    checksums[piece.extent] = crc32_at(extent.address, extent.nbytes, checksums[piece.extent])
            request.control.advance(window.nbytes)
        return TransportResult("cached", checksums, filled_span=span is not None and at == span.offset + span.nbytes)


def _gather(extent: Extent, address: int) -> None:
    np.copyto(_array(address, extent.nbytes), _array(extent.address, extent.nbytes))


def _array(address: int, nbytes: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(raw_memory.view(address, nbytes), dtype=np.uint8)
