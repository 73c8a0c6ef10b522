"""``torch``: ``Tensor.copy_`` between memory on any device and a block on the host, plus plain reads and writes.

For ``pt`` the caller passes the whole object to ``torch.save`` and ``torch.load`` instead (``Capabilities.whole``).

torch's own functions to read a storage from a file are unsuitable. ``UntypedStorage.from_file`` maps the file: access
to a part that another process truncated, or to an unreadable block, ends the process (SIGBUS). The others report errors
only as text.
"""

from __future__ import annotations

from fastio import devices
from fastio.backends import _files, _memory, _staged
from fastio.backends._windows import check
from fastio.memory import raw_memory
from fastio.transports.transport import Capabilities, Extent, ReadRequest, TransportResult, WriteRequest

# A host block must stay in the processor's cache until the kernel has copied it. Each copy to or from a device has a
# fixed cost.
_HOST_BLOCK, _DEVICE_BLOCK = 512 << 10, 16 << 20


class TorchTransport:
    """``Tensor.copy_`` and the page cache, for memory on any device of this torch."""

    name = "torch"

    @property
    def capabilities(self) -> Capabilities:
        """For all devices that fastio knows. To ask whether there is one would break CUDA in forked children."""
        return Capabilities(devices=devices.all_kinds() | {"cpu"}, whole=frozenset({"pt"}), checksums=True)

    def write(self, request: WriteRequest) -> TransportResult:
        """Write ``request.extents``. Raises as :class:`fastio.transports.transport.Transport` says."""
        check(request)
        _memory.synchronize(request.extents)
        route, block = _route(request)
        return TransportResult(route, _staged.write(request, block, _gather))

    def read(self, request: ReadRequest) -> TransportResult:
        """Fill the memory of ``request.extents``. Raises as :class:`fastio.transports.transport.Transport` says."""
        check(request)
        _files.check_length(request)
        _memory.synchronize(request.extents)
        route, block = _route(request)
        return TransportResult(route, _staged.read(request, block, _scatter))


def _gather(extent: Extent, address: int) -> None:
    raw_memory.host_bytes(address, extent.nbytes).copy_(_memory.tensor(extent))


def _scatter(extent: Extent, address: int) -> None:
    _memory.tensor(extent).copy_(raw_memory.host_bytes(address, extent.nbytes))


def _route(request: WriteRequest | ReadRequest) -> tuple[str, int]:
    """The route, and the block size for it."""
    on_host = all(extent.device == "cpu" for extent in request.extents)
    return ("cached", _HOST_BLOCK) if on_host else ("bounce", _DEVICE_BLOCK)
