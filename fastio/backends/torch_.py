"""torch's way: ``Tensor.copy_`` between memory on any device and a block on the host, which the system writes or fills.

For ``pt`` the caller hands the whole object to ``torch.save`` and ``torch.load`` instead (``Capabilities.whole``).

torch's own ways to a storage of a file are of no use here. ``UntypedStorage.from_file`` maps it, and an access to what
another process cut off, or to a block that cannot be had, ends the process (SIGBUS); others tell errors as text.
"""

from __future__ import annotations

import torch

from fastio.backends import _files, _memory, _staged
from fastio.backends._windows import check
from fastio.memory import raw_memory
from fastio.transports.transport import Capabilities, Extent, ReadRequest, TransportResult, WriteRequest

# A copy on the host must stay in the processor's cache until the kernel has made its own; each one to or from a device
# costs its beginning.
_HOST_BLOCK, _DEVICE_BLOCK = 512 << 10, 16 << 20


def _devices() -> frozenset[str]:
    """What this torch was built for: asking CUDA for GPUs at import would forbid it to forked children."""
    if torch.backends.cuda.is_built():
        return frozenset({"cpu", "cuda"})
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return frozenset({"cpu"} | ({accelerator.type} if accelerator is not None else set()))


class TorchTransport:
    """``Tensor.copy_`` and the page cache, for memory on any device that torch has here."""

    name = "torch"

    def __init__(self) -> None:
        self.capabilities = Capabilities(devices=_devices(), whole=frozenset({"pt"}), checksums=True)

    def write(self, request: WriteRequest) -> TransportResult:
        """Write ``request.extents``. Raises as :class:`fastio.transports.transport.Transport` says."""
        check(request)
        _memory.synchronize(request.extents)
        route, block = _way(request)
        return TransportResult(route, _staged.write(request, block, _gather))

    def read(self, request: ReadRequest) -> TransportResult:
        """Fill the memory of ``request.extents``. Raises as :class:`fastio.transports.transport.Transport` says."""
        check(request)
        _files.check_length(request)
        _memory.synchronize(request.extents)
        route, block = _way(request)
        return TransportResult(route, _staged.read(request, block, _scatter))


def _gather(extent: Extent, address: int) -> None:
    raw_memory.host_bytes(address, extent.nbytes).copy_(_memory.tensor(extent))


def _scatter(extent: Extent, address: int) -> None:
    _memory.tensor(extent).copy_(raw_memory.host_bytes(address, extent.nbytes))


def _way(request: WriteRequest | ReadRequest) -> tuple[str, int]:
    """The route, and the size of the block that suits it."""
    on_host = all(extent.device == "cpu" for extent in request.extents)
    return ("cached", _HOST_BLOCK) if on_host else ("bounce", _DEVICE_BLOCK)
