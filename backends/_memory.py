"""Raw addresses as things that Python and torch can read and write, without a copy. All sizes are bytes."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from fastio.errors import RefusedError
from fastio.transport import Extent

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
    """The host memory ``[address, address + nbytes)``, writable. The caller keeps it alive."""
    if nbytes == 0:
        return memoryview(bytearray())
    seen: memoryview = _view_memory(address, nbytes, _WRITABLE)
    return seen


def tensor(extent: Extent) -> torch.Tensor:
    """An extent's memory as a uint8 tensor of shape ``(nbytes,)`` on its own device.

    Memory is found through the storage that owns it or, on the host and on CUDA devices, by address alone.
    Raises RefusedError where neither leads to it.
    """
    kind = torch.device(extent.device).type
    if extent.nbytes == 0:
        return torch.empty(0, dtype=torch.uint8, device=extent.device)
    storage = _owning_storage(extent, kind)
    if storage is not None:
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        begin = extent.address - storage.data_ptr()
        return whole[begin : begin + extent.nbytes]
    if kind == "cpu":
        return torch.frombuffer(view(extent.address, extent.nbytes), dtype=torch.uint8)
    if kind == "cuda":  # without a device: the address says which one, and to name another would make a copy
        return torch.as_tensor(CudaBytes(extent.address, extent.nbytes))
    raise RefusedError(f"memory on {extent.device} is reached through its storage, and this extent names none")


def why_no_cuda() -> tuple[str, str]:
    """The reason and the cure, where ``torch.cuda.is_available()`` is False."""
    if not torch.backends.cuda.is_built():
        return f"this torch ({torch.__version__}) is built without CUDA", "install a torch that is built with CUDA"
    return "torch finds no CUDA device", "it needs a GPU and its driver; nvidia-smi shows what the driver sees"


def _owning_storage(extent: Extent, kind: str) -> torch.UntypedStorage | None:
    owner = extent.owner
    if isinstance(owner, torch.Tensor):
        owner = owner.untyped_storage()
    if not isinstance(owner, torch.UntypedStorage) or owner.device.type != kind:
        return None
    begin = extent.address - owner.data_ptr()
    return owner if begin >= 0 and begin + extent.nbytes <= owner.nbytes() else None
