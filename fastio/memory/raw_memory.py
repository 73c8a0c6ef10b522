"""Raw addresses and storages as things that Python and torch can read and write, without a copy. All sizes are bytes.

Memory given by address is kept alive by the caller.
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
    """Host memory as uint8 of shape ``(nbytes,)``, at least one."""
    return torch.frombuffer(view(address, nbytes), dtype=torch.uint8)


def cuda_bytes(address: int, nbytes: int) -> torch.Tensor:
    """CUDA memory as uint8 of shape ``(nbytes,)``, on the device whose address it is."""
    # The address says which device; to name another, as a default device of the caller's does, would make a copy.
    with torch._C.DisableTorchFunction():
        return torch.as_tensor(CudaBytes(address, nbytes))


def storage_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """All of a storage as uint8 of shape ``(nbytes,)``, on its device."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def synchronize(devices: Iterable[torch.device]) -> None:
    """Wait for the work that was queued on these, where they are GPUs, whichever stream it was.

    It computes what is to be saved, or still uses memory that torch gave to what is loaded. Whoever moves bytes does so
    on a thread and a stream that know nothing of it.
    """
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def overwritten(tensor: torch.Tensor) -> None:
    """Have autograd know that a tensor's bytes are others now, as ``copy_`` does: it may have been saved before."""
    if not tensor.is_inference():  # those have no version
        torch.autograd.graph.increment_version(tensor)
