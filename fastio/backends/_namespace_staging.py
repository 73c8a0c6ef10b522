"""Memory through which bytes go to and from a namespace: the host's, or a device's that the disk reaches by itself."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from fastio import devices
from fastio._native import Mapping, crc32_at
from fastio.backends import _memory
from fastio.backends._steps import STEP
from fastio.devices import copy_errors
from fastio.errors import RefusedError
from fastio.memory.raw_memory import host_bytes
from fastio.nvme.mapped_memory import mapped_device_memory
from fastio.transports.transport import Extent
from fastio.volumes.namespace_device import NamespaceDevice

Range = tuple[int, int]
"""Where bytes begin in the memory, and their number."""


class HostStaging:
    """Memory of the host. ``address`` is where the driver finds it."""

    def __init__(self) -> None:
        self._mapping = Mapping(STEP, used=True)
        self.address = self._mapping.address
        self._bytes = host_bytes(self.address, STEP)

    def clear(self, nbytes: int) -> None:
        """Set the first bytes to zero."""
        ctypes.memset(self.address, 0, nbytes)

    def take(self, at: int, extent: Extent, low: int, high: int) -> None:
        """Copy the bytes ``[low, high)`` of the object from an extent's memory."""
        if extent.device == "cpu":
            ctypes.memmove(self.address + at, extent.address + low - extent.offset, high - low)
        else:
            with copy_errors():
                self._bytes[at : at + high - low].copy_(_part(extent, low, high))

    def put(self, at: int, data: bytes) -> None:
        """Copy bytes of the host."""
        ctypes.memmove(self.address + at, data, len(data))

    def give(self, at: int, extent: Extent, low: int, high: int) -> None:
        """Copy the bytes ``[low, high)`` of the object to an extent's memory."""
        if extent.device == "cpu":
            ctypes.memmove(extent.address + low - extent.offset, self.address + at, high - low)
        else:
            with copy_errors():
                _part(extent, low, high).copy_(self._bytes[at : at + high - low])

    def checksums(self, ranges: Sequence[Range]) -> list[int]:
        """The CRC-32 of each range."""
        return [crc32_at(self.address + at, nbytes) for at, nbytes in ranges]

    def settle(self) -> None:
        """All copies have ended: they were waited for."""

    def close(self) -> None:
        """The memory goes with the last reference to it."""


class DeviceStaging:
    """Memory of a device, in a window through which the disk reads and writes it. ``address`` is the window's.

    No byte of the device's extents is in host memory, nor for a checksum. RefusedError and ToolUnavailableError, with
    the reason, if the device has no window, or computes no CRC-32 while ``checked`` asks for one.
    """

    def __init__(self, device: torch.device, namespace: NamespaceDevice, checked: bool) -> None:
        accelerator = devices.find(device)
        if accelerator is None:
            raise RefusedError(f"fastio maps no memory of {device.type} devices for a disk")
        self._accelerator, self._device, self._start = accelerator, device, 0
        if checked:
            self.checksums([])  # whether it can
        self._mapped = mapped_device_memory(STEP, namespace, accelerator, device)
        self._start = self._mapped.address
        self.address = self._start + self._mapped.shift
        self._bytes = accelerator.bytes_at(self._start, STEP)

    def clear(self, nbytes: int) -> None:
        """See :class:`HostStaging`."""
        with copy_errors():
            self._bytes[:nbytes].zero_()

    def take(self, at: int, extent: Extent, low: int, high: int) -> None:
        """See :class:`HostStaging`."""
        with copy_errors():
            self._bytes[at : at + high - low].copy_(_part(extent, low, high))

    def put(self, at: int, data: bytes) -> None:
        """See :class:`HostStaging`."""
        with copy_errors():
            self._bytes[at : at + len(data)].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))

    def give(self, at: int, extent: Extent, low: int, high: int) -> None:
        """See :class:`HostStaging`."""
        with copy_errors():
            _part(extent, low, high).copy_(self._bytes[at : at + high - low])

    def checksums(self, ranges: Sequence[Range]) -> list[int]:
        """See :class:`HostStaging`: the device computes it."""
        with copy_errors():
            return self._accelerator.crc32_of_ranges(
                [(self._start + at, nbytes) for at, nbytes in ranges], self._device
            )

    def settle(self) -> None:
        """Wait for the copies: the disk does not."""
        with copy_errors():
            self._accelerator.current_stream(self._device).synchronize()

    def close(self) -> None:
        """Unmap and free it."""
        self._mapped.close()


Staging = HostStaging | DeviceStaging


def _part(extent: Extent, low: int, high: int) -> torch.Tensor:
    """The bytes ``[low, high)`` of the object in an extent's memory. A copy between it and host memory is blocking."""
    return _memory.tensor(extent)[low - extent.offset : high - extent.offset]
