"""``nvme``, ``vfio`` and ``spdk``: objects of volumes on NVMe namespaces, by a driver that the volume has opened.

Memory of the host and of devices is copied through one block of host memory of 4 MiB, and checked on the way. They move
no files.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

import torch

from fastio._native import Mapping, crc32_at
from fastio.backends import _files, _memory
from fastio.devices import copy_errors
from fastio.errors import RefusedError
from fastio.memory.raw_memory import host_bytes
from fastio.transports.transport import Capabilities, Extent, ReadRequest, TransportResult, WriteRequest
from fastio.volumes import views
from fastio.volumes.device import BLOCK
from fastio.volumes.namespace_device import NamespaceDevice
from fastio.volumes.transfers import pieces

_STEP = 4 << 20


class NamespaceTransport:
    """A driver of namespaces. ``write`` and ``read`` take requests for views of volumes on them alone."""

    capabilities = Capabilities(operations=frozenset(), checksums=True, automatic=False)

    def __init__(self, name: str) -> None:
        self.name = name

    def write(self, request: WriteRequest) -> TransportResult:
        """Write the object's blocks, zeros wherever no extent is. RefusedError for a request for a file."""
        view, device = self._places(request)
        checksums = [0] * len(request.extents)
        staging = Mapping(_STEP, used=True)
        size = -(-view.nbytes // BLOCK) * BLOCK
        for begin in range(0, size, _STEP):
            _files.stop_if_cancelled(request.control, request.path)
            end = min(begin + _STEP, size)
            ctypes.memset(staging.address, 0, end - begin)
            for index, low, high in _parts(request.extents, begin, end):
                at, extent = staging.address + low - begin, request.extents[index]
                if extent.device == "cpu":
                    ctypes.memmove(at, extent.address + low - extent.offset, high - low)
                else:
                    with copy_errors():
                        host_bytes(at, high - low).copy_(_on_its_device(extent, low, high))
                if extent.checksum:
                    checksums[index] = crc32_at(at, high - low, checksums[index])
            for patch in request.patches:
                value = checksums[patch.extent].to_bytes(4, "little")
                for place in range(max(begin, patch.offset), min(end, patch.offset + 4)):
                    ctypes.memset(staging.address + place - begin, value[place - patch.offset], 1)
            for place, nbytes, at in _on_device(view, begin, end):
                device.write_from(staging.address + at, place, nbytes)
            request.control.advance(min(end, request.size) - begin)
        return TransportResult("namespace", checksums)

    def read(self, request: ReadRequest) -> TransportResult:
        """Fill the memory of ``request.extents``. RefusedError for a request for a file."""
        view, device = self._places(request)
        checksums = [0] * len(request.extents)
        staging = Mapping(_STEP, used=True)
        for begin in range(0, -(-view.nbytes // BLOCK) * BLOCK, _STEP):
            _files.stop_if_cancelled(request.control, request.path)
            wanted = list(_parts(request.extents, begin, begin + _STEP))
            if not wanted:
                continue
            first = wanted[0][1] // BLOCK * BLOCK
            last = -(-max(high for _, _, high in wanted) // BLOCK) * BLOCK
            for place, nbytes, at in _on_device(view, first, last):
                device.read_into(staging.address + at, place, nbytes)
            for index, low, high in wanted:
                at, extent = staging.address + low - first, request.extents[index]
                if extent.address and extent.device == "cpu":  # else the bytes are not kept, or a device's
                    ctypes.memmove(extent.address + low - extent.offset, at, high - low)
                elif extent.address:
                    with copy_errors():
                        _on_its_device(extent, low, high).copy_(host_bytes(at, high - low))
                if extent.checksum:
                    checksums[index] = crc32_at(at, high - low, checksums[index])
                request.control.advance(high - low)
        return TransportResult("namespace", checksums)

    def _places(self, request: WriteRequest | ReadRequest) -> tuple[views.View, NamespaceDevice]:
        view = views.of(request.fd)
        if view is None or not isinstance(view.device, NamespaceDevice):
            raise RefusedError(f"{request.path}: it drives whole NVMe namespaces, and files lie in filesystems")
        with copy_errors():
            _memory.synchronize(request)
        return view, view.device


def nvme() -> NamespaceTransport:
    """The tool of the kernel's passthrough."""
    return NamespaceTransport("nvme")


def vfio() -> NamespaceTransport:
    """The tool of fastio's own driver."""
    return NamespaceTransport("vfio")


def _on_its_device(extent: Extent, low: int, high: int) -> torch.Tensor:
    """The bytes ``[low, high)`` of the file in an extent's memory. A copy between it and host memory is blocking."""
    return _memory.tensor(extent)[low - extent.offset : high - extent.offset]


def _parts(extents: Sequence[Extent], begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The index of each extent that has bytes in ``[begin, end)``, and which: from, and to."""
    for index, extent in enumerate(extents):
        low, high = max(begin, extent.offset), min(end, extent.offset + extent.nbytes)
        if low < high:
            yield index, low, high


def _on_device(view: views.View, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Where the object's blocks ``[begin, end)`` lie: offset on the device, bytes, and bytes behind ``begin``."""
    at = 0
    for place, nbytes in pieces(view.runs, begin, end - begin):
        yield place, nbytes, at
        at += nbytes
