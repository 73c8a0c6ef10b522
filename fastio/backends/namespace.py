"""``nvme``, ``vfio`` and ``spdk``: objects of volumes on NVMe namespaces, by a driver that the volume has opened.

Bytes are moved, and checked, 4 MiB at a time. Those of tensors on a device go between its memory and the disk, through
a window (``peer``), where it has one and computes CRC-32s; else through host memory. They move no files.
"""

from __future__ import annotations

import contextlib
import ctypes
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from types import TracebackType

import torch

from fastio import devices
from fastio._native import crc32_combine
from fastio.backends import _files, _memory
from fastio.backends._namespace_staging import DeviceStaging, HostStaging, Staging
from fastio.backends._steps import Step, parts, steps
from fastio.devices import copy_errors
from fastio.errors import FastIOError, RefusedError, ToolUnavailableError
from fastio.transports.transport import Capabilities, Patch, ReadRequest, TransportResult, WriteRequest
from fastio.volumes import views
from fastio.volumes.namespace_device import NamespaceDevice
from fastio.volumes.transfers import pieces


class NamespaceTransport:
    """A driver of namespaces. ``write`` and ``read`` take requests for views of volumes on them alone."""

    def __init__(self, name: str) -> None:
        self.name = name
        memory = devices.all_kinds() | {"cpu"}
        self.capabilities = Capabilities(
            devices=frozenset(memory), checksums=True, automatic=False, direct=True, namespaces=True
        )

    def write(self, request: WriteRequest) -> TransportResult:
        """Write the object's blocks, zeros wherever no extent is. RefusedError for a request for a file."""
        patches = sorted(request.patches)
        with _Transfer(request) as transfer:
            for step in steps(request.extents, transfer.devices, transfer.view.nbytes):
                staging = transfer.begin(step)
                transfer.gather(staging, step, patches)
                staging.settle()
                for place, nbytes, at in transfer.places(step):
                    transfer.namespace.write_from(staging.address + at, place, nbytes)
                request.control.advance(min(step.end, request.size) - step.begin)
            return transfer.result()

    def read(self, request: ReadRequest) -> TransportResult:
        """Fill the memory of ``request.extents``. RefusedError for a request for a file."""
        with _Transfer(request) as transfer:
            for step in steps(request.extents, transfer.devices):
                staging = transfer.begin(step)
                for place, nbytes, at in transfer.places(step):
                    transfer.namespace.read_into(staging.address + at, place, nbytes)
                wanted = list(parts(request.extents, step))
                transfer.check(staging, step, wanted)
                for index, low, high in wanted:
                    if request.extents[index].address:  # else the bytes are not kept
                        staging.give(low - step.begin, request.extents[index], low, high)
                staging.settle()
                request.control.advance(sum(high - low for _, low, high in wanted))
            return transfer.result()


class _Transfer:
    """One request: the object's view, the memory through which it goes, checksums, and what did not go the best way.

    ``devices`` are those of the extents' memory; None where it goes through the host's.
    """

    def __init__(self, request: WriteRequest | ReadRequest) -> None:
        view = views.of(request.fd)
        if view is None or not isinstance(view.device, NamespaceDevice):
            raise RefusedError(f"{request.path}: it drives whole NVMe namespaces, and files lie in filesystems")
        self.view, self.namespace = view, view.device
        self._request = request
        self._checksums = [0] * len(request.extents)
        self._staging: dict[torch.device | None, Staging] = {}
        self._closing = contextlib.ExitStack()
        self._notes: list[str] = []

    def __enter__(self) -> _Transfer:
        with self._closing:
            with copy_errors():
                _memory.synchronize(self._request)
            self.devices = self._reached()
            self._closing = self._closing.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closing.close()

    def _reached(self) -> list[torch.device | None]:
        """The device of each extent, or None; a window into each that has one. Notes say why others have none."""
        extents = self._request.extents
        checked = any(extent.checksum for extent in extents)
        found = [None if extent.device == "cpu" else _memory.device_of(extent) for extent in extents]
        for device in dict.fromkeys(found):
            if device is None:
                continue
            try:
                staging = DeviceStaging(device, self.namespace, checked)
            except (FastIOError, OSError) as error:
                nbytes = sum(extent.nbytes for extent, own in zip(extents, found, strict=True) if own == device)
                self._notes.append(f"{nbytes} bytes on {device} went through host memory: {error}{self._cure(error)}")
                found = [None if own == device else own for own in found]
                continue
            self._staging[device] = staging
            self._closing.callback(staging.close)
        return found

    def _cure(self, error: Exception) -> str:
        if isinstance(error, ToolUnavailableError):
            return ""  # it has its own
        if self.namespace.kind == "nvme":
            return "; the kernel takes no memory of devices: name the namespace by vfio: or spdk:"
        return "; fastio-bench doctor lists what a window into the device's memory needs"

    def begin(self, step: Step) -> Staging:
        """The memory of a step. RefusedError after the transfer was cancelled."""
        _files.stop_if_cancelled(self._request.control, self._request.path)
        if step.device not in self._staging:
            self._staging[step.device] = HostStaging()
        return self._staging[step.device]

    def gather(self, staging: Staging, step: Step, patches: Sequence[Patch]) -> None:
        """Copy the bytes of a step into its memory, those that are checked first: patches are in the others."""
        extents = self._request.extents
        own = list(parts(extents, step))
        if sum(high - low for _, low, high in own) < step.end - step.begin:
            staging.clear(step.end - step.begin)
        checked = [part for part in own if extents[part[0]].checksum]
        for index, low, high in checked:
            staging.take(low - step.begin, extents[index], low, high)
        self.check(staging, step, checked)
        for index, low, high in own:
            extent = extents[index]
            if extent.checksum:
                continue
            first, last = (bisect_left(patches, place, key=_offset) for place in (low - 3, high))
            if first == last:
                staging.take(low - step.begin, extent, low, high)
                continue
            data = bytearray(ctypes.string_at(extent.address + low - extent.offset, high - low))
            for patch in patches[first:last]:
                value = self._checksums[patch.extent].to_bytes(4, "little")
                for place in range(max(low, patch.offset), min(high, patch.offset + 4)):
                    data[place - low] = value[place - patch.offset]
            staging.put(low - step.begin, bytes(data))

    def check(self, staging: Staging, step: Step, own: Sequence[tuple[int, int, int]]) -> None:
        """Take parts in a step's memory into their extents' checksums."""
        checked = [part for part in own if self._request.extents[part[0]].checksum]
        if not checked:
            return
        values = staging.checksums([(low - step.begin, high - low) for _, low, high in checked])
        for (index, low, high), value in zip(checked, values, strict=True):
            self._checksums[index] = crc32_combine(self._checksums[index], value, high - low)

    def places(self, step: Step) -> Iterator[tuple[int, int, int]]:
        """Where a step's blocks lie on the namespace: offset there, bytes, and bytes behind the step's first."""
        at = 0
        for place, nbytes in pieces(self.view.runs, step.begin, step.end - step.begin):
            yield place, nbytes, at
            at += nbytes

    def result(self) -> TransportResult:
        """``peer`` if all bytes of devices went between their memory and the disk, and there were some."""
        is_peer = any(device is not None for device in self.devices) and not self._notes
        return TransportResult("peer" if is_peer else "namespace", self._checksums, tuple(self._notes))


def _offset(patch: Patch) -> int:
    return patch.offset


def nvme() -> NamespaceTransport:
    """The tool of the kernel's passthrough."""
    return NamespaceTransport("nvme")


def vfio() -> NamespaceTransport:
    """The tool of fastio's own driver."""
    return NamespaceTransport("vfio")
