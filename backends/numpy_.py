"""numpy's way: one thread, the page cache, arrays laid over the memory itself (no copy besides the kernel's).

``ndarray.tofile`` and ``numpy.fromfile`` go through C's buffered files, where the errno of a failed write is lost and
a read lands in new memory. So the arrays are handed to the system calls instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastio import addresses
from fastio.backends import _files
from fastio.backends._windows import check, part, windows
from fastio.transport import Capabilities, Moved, ReadRequest, WriteRequest

if TYPE_CHECKING:
    import numpy.typing as npt

_WINDOW = 8 << 20


class NumpyTransport:
    """Buffered reads and writes of whole arrays, host memory only."""

    name = "numpy"
    capabilities = Capabilities()

    def write(self, request: WriteRequest) -> Moved:
        """Write ``request.extents``. Raises as :class:`fastio.transport.Transport` says."""
        check(request)
        for window in windows(request.extents, _WINDOW):
            _files.stop_if_cancelled(request.control, request.path)
            for piece in window.pieces:
                source = _array(part(request.extents, piece).address, piece.nbytes)
                _files.write_all(request.path, request.fd, source.data, piece.offset)
            request.control.advance(window.nbytes)
        return Moved("cached")

    def read(self, request: ReadRequest) -> Moved:
        """Fill the memory of ``request.extents``. Raises as :class:`fastio.transport.Transport` says."""
        check(request)
        _files.check_length(request)
        for window in windows(request.extents, _WINDOW):
            _files.stop_if_cancelled(request.control, request.path)
            if request.span is not None:
                address = request.span.address + window.begin - request.span.offset
                name = request.extents[window.pieces[0].extent].name
                target = _array(address, window.end - window.begin)
                _files.read_all(request.path, request.fd, target.data, window.begin, name)
            else:
                for piece in window.pieces:
                    extent = part(request.extents, piece)
                    target = _array(extent.address, extent.nbytes)
                    _files.read_all(request.path, request.fd, target.data, extent.offset, extent.name)
            request.control.advance(window.nbytes)
        return Moved("cached")


def _array(address: int, nbytes: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(addresses.view(address, nbytes), dtype=np.uint8)
