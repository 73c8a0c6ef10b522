"""Memory that disks read and write themselves: of the host, or of a device through a window (FlashNeuron, section 3.1).

Device memory must be mapped for the disks before its first use and stay mapped, while torch gives memory back to the
driver as it likes. So the bytes of tensors are copied, within the device, to or from memory that is kept for that.
"""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

import torch

from fastio.devices import Accelerator
from fastio.errors import FastIOError, RefusedError
from fastio.nvme.gpu_memory import GpuWindow
from fastio.sizes import exact_size

_ALIGNMENT = 64 << 10  # bytes: the largest page of a window


class Memory(Protocol):
    """Page-aligned bytes at an address, of host memory or a device's."""

    address: int

    def close(self) -> None:
        """Free it. It must not be in use."""


class MappedMemory:
    """Memory that the disks of a store reach by themselves while it exists, through ``window`` if it is a device's.

    ``shift`` added to an address in it is where the store sees that byte.
    """

    def __init__(self, nbytes: int, store: Any, memory: Memory, window: Memory | None = None) -> None:
        self.address = memory.address
        self._seen = window or memory  # by the store
        self.shift = self._seen.address - self.address
        self._store = store
        self._parts = [memory] if window is None else [window, memory]
        try:
            store.map(self._seen.address, nbytes)
        except BaseException:
            self._free()
            raise

    def close(self) -> None:
        """Unmap and free it. No transfer may use it."""
        with contextlib.suppress(FastIOError):  # a closed store has unmapped it
            self._store.unmap(self._seen.address)
        self._free()

    def _free(self) -> None:
        for part in self._parts:
            part.close()


class DeviceMemory:
    """Aligned memory of a device, ordered after all of its work that used the memory before."""

    def __init__(self, nbytes: int, accelerator: Accelerator, device: torch.device) -> None:
        try:
            self._owner: Any = torch.empty(nbytes + _ALIGNMENT, dtype=torch.uint8, device=device)
            accelerator.synchronize(device)  # earlier work may still use the memory
        except RuntimeError as error:  # torch.OutOfMemoryError, too
            raise RefusedError(f"{exact_size(nbytes)} of device memory for transfers were refused: {error}") from None
        start = self._owner.data_ptr()
        self.address = start + -start % _ALIGNMENT

    def close(self) -> None:
        """Give it back to torch."""
        self._owner = None


def mapped_device_memory(nbytes: int, store: Any, accelerator: Accelerator, device: torch.device) -> MappedMemory:
    """Memory of a device that the disks of a store reach through a window.

    RefusedError with the reasons if there is no window, or no memory; what ``store.map`` raises.
    """
    memory = DeviceMemory(nbytes, accelerator, device)
    return MappedMemory(nbytes, store, memory, _open_window(accelerator, memory.address, nbytes))


def _open_window(accelerator: Accelerator, address: int, nbytes: int) -> Memory:
    if accelerator.kind == "cuda":
        return GpuWindow(address, nbytes)
    window: Memory = accelerator.open_window(address, nbytes)
    return window
