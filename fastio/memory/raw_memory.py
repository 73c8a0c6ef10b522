"""Views of raw addresses and storages for Python and torch, without a copy. All sizes are bytes.

The caller keeps memory that it passes by address alive.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import torch

from fastio import devices

_WRITABLE = 0x200  # PyBUF_WRITE
_view_memory = ctypes.pythonapi.PyMemoryView_FromMemory
_view_memory.restype = ctypes.py_object
_view_memory.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)


def view(address: int, nbytes: int) -> memoryview:
    """The host memory ``[address, address + nbytes)``, writable."""
    if nbytes == 0:
        return memoryview(bytearray())
    seen: memoryview = _view_memory(address, nbytes, _WRITABLE)
    return seen


def host_bytes(address: int, nbytes: int) -> torch.Tensor:
    """Host memory as a uint8 tensor of shape ``(nbytes,)``, at least one byte."""
    return torch.frombuffer(view(address, nbytes), dtype=torch.uint8)


def bytes_at(address: int, nbytes: int, device: torch.device | str) -> torch.Tensor:
    """Memory of a type of device, or of the host, as a uint8 tensor of shape ``(nbytes,)``, at least one byte."""
    accelerator = devices.find(device)
    return host_bytes(address, nbytes) if accelerator is None else accelerator.bytes_at(address, nbytes)


def storage_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """A whole storage as a uint8 tensor of shape ``(nbytes,)``, on its device."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def synchronize(used: Iterable[torch.device]) -> None:
    """Wait for all work queued on these devices, on any stream; the host and devices fastio cannot use are skipped.

    That work computes the tensors to be saved, or still uses memory that torch reused for loaded ones. Transfers run on
    other threads and streams, which are not ordered after it.
    """
    for device in used:
        accelerator = devices.find(device)
        if accelerator is not None:
            accelerator.synchronize(device)


def mark_overwritten(tensor: torch.Tensor) -> None:
    """Increase a tensor's version, as ``copy_`` does: autograd may have saved it for backward before it changed."""
    if not tensor.is_inference():  # inference tensors have no version
        torch.autograd.graph.increment_version(tensor)
