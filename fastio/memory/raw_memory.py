"""Views of raw addresses and storages for Python and torch, without a copy. All sizes are bytes.

The caller keeps memory that it passes by address alive.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any

import torch

_WRITABLE = 0x200  # PyBUF_WRITE
_view_memory = ctypes.pythonapi.PyMemoryView_FromMemory
_view_memory.restype = ctypes.py_object
_view_memory.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)


class CudaBytes:
    """``nbytes`` of CUDA memory at ``address``, for readers of ``__cuda_array_interface__`` (torch, kvikio, cupy)."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def view(address: int, nbytes: int) -> memoryview:
    """The host memory ``[address, address + nbytes)``, writable."""
    if nbytes == 0:
        return memoryview(bytearray())
    seen: memoryview = _view_memory(address, nbytes, _WRITABLE)
    return seen


def host_bytes(address: int, nbytes: int) -> torch.Tensor:
    """Host memory as a uint8 tensor of shape ``(nbytes,)``, at least one byte."""
    return torch.frombuffer(view(address, nbytes), dtype=torch.uint8)


def cuda_bytes(address: int, nbytes: int) -> torch.Tensor:
    """CUDA memory as a uint8 tensor of shape ``(nbytes,)``, on the device of the address."""
    # The address determines the device. The caller's default device, which may be another, would cause a copy.
    with torch._C.DisableTorchFunction():
        return torch.as_tensor(CudaBytes(address, nbytes))


def storage_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """A whole storage as a uint8 tensor of shape ``(nbytes,)``, on its device."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def synchronize(devices: Iterable[torch.device]) -> None:
    """Wait for all work queued on these devices, on any stream; other devices than CUDA ones are skipped.

    That work computes the tensors to be saved, or still uses memory that torch reused for loaded ones. Transfers run on
    other threads and streams, which are not ordered after it.
    """
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def mark_overwritten(tensor: torch.Tensor) -> None:
    """Increase a tensor's version, as ``copy_`` does: autograd may have saved it for backward before it changed."""
    if not tensor.is_inference():  # inference tensors have no version
        torch.autograd.graph.increment_version(tensor)
