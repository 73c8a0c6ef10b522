"""``numpy``: one thread and the page cache, as ``ndarray.tofile`` and ``numpy.fromfile`` move the bytes of arrays.

Those two use C's buffered files, which lose the errno of a failed write and read into new memory. So the system calls
get the memory itself.
"""

from __future__ import annotations

from fastio.backends import _page_cache
from fastio.transports.transport import Capabilities, ReadRequest, TransportResult, WriteRequest


class NumpyTransport:
    """Buffered reads and writes by the calling thread, host memory only."""

    name = "numpy"
    capabilities = Capabilities(checksums=True)

    def write(self, request: WriteRequest) -> TransportResult:
        return _page_cache.write(request)

    def read(self, request: ReadRequest) -> TransportResult:
        return _page_cache.read(request)
