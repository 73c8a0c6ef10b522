"""``numpy``: one thread and the page cache; saves are of numpy arrays that share the extents' memory.

Only the kernel copies bytes, unless a save needs checksums: then arrays are copied to a block that stays in the
processor's cache, and are checksummed and written from there. Loads compute checksums of bytes that are still there.
``ndarray.tofile`` and ``numpy.fromfile`` use C's buffered files, which lose the errno of a failed write and read into
new memory. So the system calls get the memory itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastio._native import cached_read
from fastio.backends import _files, _staged
from fastio.backends._windows import check, part, windows
from fastio.files.full_write import write_all
from fastio.memory import raw_memory
from fastio.transports.transport import Capabilities, Extent, ReadRequest, TransportResult, WriteRequest

if TYPE_CHECKING:
    import numpy.typing as npt

_WINDOW = 8 << 20
_BLOCK = 512 << 10
_READ_BLOCK = 2 << 20  # a huge page, which is filled while it is in the processor's cache


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
        span = request.span
        with _files.translate_read_errors(request):
            checksums = cached_read(
                request.fd, request.size, request.extents, span, _READ_BLOCK, 1, False, request.control
            )
        return TransportResult("cached", checksums, filled_span=span is not None)


def _gather(extent: Extent, address: int) -> None:
    np.copyto(_array(address, extent.nbytes), _array(extent.address, extent.nbytes))


def _array(address: int, nbytes: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(raw_memory.view(address, nbytes), dtype=np.uint8)
