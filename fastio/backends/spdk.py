"""``spdk``: objects of volumes by SPDK's user-level NVMe driver, where this build has it; it cannot save or load files.

SPDK, by which FlashNeuron drives its SSDs (section 3.4) and which Fastensor names as related work, drives whole NVMe
namespaces, which then hold no filesystem.
Volumes and the block store lie on them:
``fastio.save(state, "spdk:trtype=PCIe traddr=0000:03:00.0/step-100.pt")``, ``fastio.Offload(store="spdk:...")``. This
tool is listed to show whether that works in this build, and to explain the refusal of ``policy="spdk"`` for files.
"""

from __future__ import annotations

from fastio._native import why_no_spdk
from fastio.backends.namespace import NamespaceTransport
from fastio.errors import ToolUnavailableError


class SpdkTransport(NamespaceTransport):
    """Raises ToolUnavailableError where the native part was built without SPDK."""

    def __init__(self) -> None:
        super().__init__("spdk")
        missing = why_no_spdk()
        if missing:
            reason, _, cure = missing.partition(": ")
            raise ToolUnavailableError(self.name, reason, cure)
