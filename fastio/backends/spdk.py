"""``spdk``: reports whether this build has SPDK's user-level NVMe driver; it cannot save or load files.

SPDK drives whole NVMe namespaces, which then hold no filesystem, so there are no paths for ``save`` and ``load``. The
block store moves tensors over SPDK: ``fastio.Offload(store="spdk:trtype=PCIe traddr=0000:03:00.0")``. This tool is
listed to show whether that works in this build, and to explain the refusal of ``policy="spdk"``.
"""

from __future__ import annotations

from fastio._native import why_no_spdk
from fastio.errors import RefusedError, ToolUnavailableError
from fastio.transports.transport import Capabilities, ReadRequest, TransportResult, WriteRequest

_WHY = "SPDK drives whole NVMe namespaces, and files lie in filesystems"


class SpdkTransport:
    """Refuses every save and load. Raises ToolUnavailableError where the native part was built without SPDK."""

    name = "spdk"
    capabilities = Capabilities(operations=frozenset(), automatic=False)

    def __init__(self) -> None:
        missing = why_no_spdk()
        if missing:
            reason, _, cure = missing.partition(": ")
            raise ToolUnavailableError(self.name, reason, cure)

    def write(self, request: WriteRequest) -> TransportResult:
        """Always raises RefusedError."""
        raise RefusedError(f"{request.path}: {_WHY}; activations go there by fastio.Offload(store='spdk:...')")

    def read(self, request: ReadRequest) -> TransportResult:
        """Always raises RefusedError."""
        raise RefusedError(f"{request.path}: {_WHY}; activations come from there by fastio.Offload(store='spdk:...')")
