"""Extents' memory as tensors, without a copy."""

from __future__ import annotations

import torch

from fastio import devices
from fastio.errors import RefusedError
from fastio.memory import raw_memory
from fastio.memory.raw_memory import bytes_at, storage_bytes
from fastio.transports.transport import Extent, ReadRequest, WriteRequest


def tensor(extent: Extent) -> torch.Tensor:
    """An extent's memory as a uint8 tensor of shape ``(nbytes,)`` on its own device.

    The tensor is made from the storage that owns the memory or, on the host and on accelerators, from the address.
    Raises RefusedError for memory on another device without such a storage.
    """
    kind = torch.device(extent.device).type
    if extent.nbytes == 0:
        return torch.empty(0, dtype=torch.uint8, device=extent.device)
    storage = _owning_storage(extent, kind)
    if storage is not None:
        begin = extent.address - storage.data_ptr()
        return storage_bytes(storage)[begin : begin + extent.nbytes]
    if kind == "cpu" or devices.find(kind) is not None:
        return bytes_at(extent.address, extent.nbytes, kind)
    raise RefusedError(f"memory on {extent.device} is reached through its storage, and this extent names none")


def device_of(extent: Extent) -> torch.device:
    """The device of an extent's memory, with its index."""
    owner = extent.owner
    is_known = isinstance(owner, (torch.Tensor, torch.UntypedStorage)) and owner.device.index is not None
    return owner.device if is_known else tensor(extent).device


def synchronize(request: ReadRequest | WriteRequest) -> None:
    """Wait for all work on the devices that hold the extents' memory, unless the caller has waited for what uses it."""
    if not request.ordered:
        raw_memory.synchronize({device_of(extent) for extent in request.extents if extent.device != "cpu"})


def _owning_storage(extent: Extent, kind: str) -> torch.UntypedStorage | None:
    owner = extent.owner
    if isinstance(owner, torch.Tensor):
        owner = owner.untyped_storage()
    if not isinstance(owner, torch.UntypedStorage) or owner.device.type != kind:
        return None
    begin = extent.address - owner.data_ptr()
    return owner if begin >= 0 and begin + extent.nbytes <= owner.nbytes() else None
