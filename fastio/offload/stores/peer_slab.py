"""A slab of device memory that a store's disks read and write themselves (FlashNeuron, sections 3.1 and 3.3).

The bytes of a tensor are copied within the device, to or from a block of the slab, and travel between that block and
the disk over the bus: none of them is ever in host memory. A slab, and not the tensors themselves, because memory must
be mapped for the disks before its first use and stay mapped, while torch gives memory back to the driver as it likes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from fastio.devices import Accelerator
from fastio.errors import FastIOError
from fastio.nvme.mapped_memory import MappedMemory, mapped_device_memory
from fastio.offload.stores.slab import Slab

_LEAST = 16 << 20  # bytes: less is not worth the gap that it makes in the memory of a small device
_CURE = "fastio-bench doctor lists what a window into the GPU's memory needs"
_DRIVER_CURE = "name the disk by vfio: or spdk:, or store files by GPUDirect Storage: store=ToolStore(folder, 'gds')"


class Route(NamedTuple):
    """How the bytes of a device's tensors reach the store, and by what; or why not by a better way, and the cure."""

    name: str  # "peer": between device memory and the disk; "pinned": through pinned host memory; "tools": by a tool's
    detail: str

    def __str__(self) -> str:
        return f"{self.name}, {self.detail}"


def open_peer_slab(
    nbytes: int, most: int, store: Any, accelerator: Accelerator, device: torch.device
) -> tuple[Slab | None, Route]:
    """Return a slab whose blocks the store reaches on the device; None if it reaches none, or ``most`` is less.

    The route says why. All of the memory is allocated and mapped at once.
    """

    def allocate(nbytes: int) -> MappedMemory:
        return mapped_device_memory(nbytes, store, accelerator, device)

    refusal = getattr(store, "peer_refusal", "this store takes no device memory: use a BlockStore on vfio: or spdk:")
    if not refusal and most < max(nbytes, _LEAST):
        refusal = f"{device} has room for {most} bytes on their way, and {max(nbytes, _LEAST)} are needed"
    elif not refusal:
        try:
            slab = Slab(nbytes, allocate)
            slab.free(slab.block(1))
            how = f"between {device} and {store.driver}: through {nbytes} bytes of the device"
            return slab, Route("peer", how)
        except (FastIOError, OSError) as error:
            refusal = f"{error}; {_CURE}" if store.wants_map else f"{error}; {_DRIVER_CURE}"
    return None, Route("pinned", f"through host memory: {refusal}")
