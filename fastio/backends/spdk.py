"""SPDK's user-level NVMe driver, as far as it is a tool: it drives whole namespaces, and knows nothing of files.

A namespace that SPDK has no filesystem on it, so there is nothing there for ``save`` and ``load`` to name. What moves
tensors over SPDK is the block store: ``fastio.Offload(store="spdk:trtype=PCIe traddr=0000:03:00.0")``. This tool is in
the list to say whether that works in this build, and to answer who asks for ``policy="spdk"``.
"""

from __future__ import annotations

from fastio import _native
from fastio.errors import RefusedError, ToolUnavailableError
from fastio.transports.transport import Capabilities, ReadRequest, TransportResult, WriteRequest

_WHY = "SPDK drives whole NVMe namespaces, and files lie in filesystems"


class SpdkTransport:
    """There where the native part was built with SPDK; it can neither save nor load. Raises ToolUnavailableError."""

    name = "spdk"
    capabilities = Capabilities(operations=frozenset(), automatic=False)

    def __init__(self) -> None:
        missing = _native.why_no_spdk()
        if missing:
            reason, _, cure = missing.partition(": ")
            raise ToolUnavailableError(self.name, reason, cure)

    def write(self, request: WriteRequest) -> TransportResult:
        """Always a RefusedError."""
        raise RefusedError(f"{request.path}: {_WHY}; activations go there by fastio.Offload(store='spdk:...')")

    def read(self, request: ReadRequest) -> TransportResult:
        """Always a RefusedError."""
        raise RefusedError(f"{request.path}: {_WHY}; activations come from there by fastio.Offload(store='spdk:...')")
