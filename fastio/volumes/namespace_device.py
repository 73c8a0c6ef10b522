"""An NVMe namespace that a volume lies on, driven past the block layer: by passthrough, by fastio's driver, or SPDK's.

Each write is durable when it returns (Force Unit Access), so that no flush is needed: what was written survives a power
cut in the order in which it was written.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from collections.abc import Mapping

from fastio._native import BlockStore, Descriptor, nvme_status
from fastio.errors import RefusedError, TransferError, VolumeError, VolumeInUseError
from fastio.nvme.safety import block_twin, refuse_contents, refuse_controller_in_use, refuse_in_use
from fastio.runtime.native_errors import translate_native_errors
from fastio.volumes.device import BLOCK
from fastio.volumes.drivers import address_in, drivers, is_address

_ALIGNMENT = 4  # of memory that commands use directly, where the driver says no more
_PASSTHROUGH = re.compile(r"ng\d+n\d+")
_last_drivers: dict[str, str] = {}  # of controllers, by the names of volumes


class NamespaceDevice:
    """The first device of a native store, whose blocks are read and written as they are.

    ``kind`` is the driver, one of ``places``: what each calls the namespace. ``claim`` holds a namespace's block device
    exclusively, so that there is one writer and nobody mounts it; the drivers in user space have the controller for
    themselves.
    """

    def __init__(
        self, native: BlockStore, name: str, kind: str, places: Mapping[str, str], claim: Descriptor | None = None
    ) -> None:
        self.name = name
        self.kind = kind
        self.places = places
        _, blocks, _, _, self.serial = native.devices()[0]
        self.nbytes = blocks * BLOCK
        self._native = native
        self._claim = claim

    def read(self, offset: int, nbytes: int) -> bytes:
        memory = ctypes.create_string_buffer(nbytes)
        self.read_into(ctypes.addressof(memory), offset, nbytes)
        return memory.raw

    def write(self, offset: int, data: bytes | memoryview) -> None:
        memory = (ctypes.c_char * len(data)).from_buffer_copy(data)
        self.write_from(ctypes.addressof(memory), offset, len(data))

    def read_into(self, address: int, offset: int, nbytes: int) -> None:
        """Read whole blocks into host memory. TransferError, with the NVMe status."""
        with translate_native_errors(self.name):
            self._check("read", offset, self._native.peek(0, offset // BLOCK, address, nbytes))

    def write_from(self, address: int, offset: int, nbytes: int) -> None:
        """Write whole blocks from host memory, durably. TransferError, with the NVMe status."""
        with translate_native_errors(self.name):
            self._check("write", offset, self._native.poke(0, offset // BLOCK, address, nbytes))

    def map(self, address: int, nbytes: int) -> None:
        """Let the disk reach memory, such as a window into a device, by itself. RefusedError if it cannot."""
        with translate_native_errors(self.name):
            self._native.map(address, nbytes)

    def unmap(self, address: int) -> None:
        """End that, once no transfer uses the memory."""
        with translate_native_errors(self.name):
            self._native.unmap(address)

    def drive_by(self, kind: str) -> bool:
        """Let another of its drivers drive the controller; return whether it is another.

        Between them other processes may use it. RefusedError for a driver that cannot.
        """
        if kind == self.kind:
            return False
        if kind not in self.places:
            raise RefusedError(f"{self.name}: the volume is on a namespace, which {kind} does not drive")
        self._native.close()
        self.kind = ""  # if the other one cannot, the first opens it again
        try:
            self._native = _native(kind, self.name, [self.places[kind]])
        except TransferError as error:
            raise RefusedError(str(error)) from None
        self.kind = _last_drivers[self.name] = kind
        return True

    def flush(self) -> None:
        """Nothing is left to flush: each write is durable."""

    def lock(self, wait_seconds: float) -> None:
        """The device was opened for this process alone."""

    def close(self) -> None:
        self._native.close()
        if self._claim is not None:
            self._claim.close()

    def discard(self) -> None:
        self.close()

    def _check(self, operation: str, offset: int, failure: tuple[int, bool, int, int, bool, int] | None) -> None:
        if failure is None:
            return
        number, _, _, block, _, status = failure
        said = f", with NVMe status {nvme_status(status)}," if status else ""
        raise TransferError(number, f"driver {self.kind}: {operation}{said}", self.name, block * BLOCK)


def open(kind: str, place: str, write: bool) -> NamespaceDevice:
    """The device that a text names. VolumeInUseError, TransferError or VolumeError with the cure.

    Of a controller's drivers, the one that drove it last in this process.
    """
    name, places = f"{kind}:{place}", drivers(place) if kind == "nvme" and is_address(place) else {kind: place}
    driver = _last_drivers.get(name, "")
    driver = driver if driver in places else next(iter(places))
    if driver != "nvme":
        return NamespaceDevice(_native(driver, name, [places[driver]]), name, driver, places)
    return _open_passthrough(name, places, write)


def _open_passthrough(name: str, places: Mapping[str, str], write: bool) -> NamespaceDevice:
    place = places["nvme"]
    if not _PASSTHROUGH.fullmatch(os.path.basename(os.path.realpath(place))):
        raise VolumeError(f"nvme:{place}: expected a namespace's passthrough device, such as nvme:/dev/ng0n1")
    claim = Descriptor(block_twin(place), os.O_RDONLY | os.O_EXCL) if write else None
    fd = os.open(place, os.O_RDWR | os.O_CLOEXEC)
    try:
        if claim is not None:
            claim.open()
        native = _native("nvme", name, [(fd, 0)])
    except OSError as error:
        os.close(fd)
        if error.errno == errno.EBUSY:
            raise VolumeInUseError(name, 0) from None
        raise
    except BaseException:
        os.close(fd)
        raise
    return NamespaceDevice(native, name, "nvme", places, claim)


def create(kind: str, place: str, nbytes: int | None, force: str | None) -> NamespaceDevice:
    """The device for a new volume.

    DeviceInUseError if it is in use, or if it holds something and ``force`` is not its serial number.
    """
    if nbytes is not None:
        raise ValueError(f"{kind}:{place}: a volume on a namespace has all of it: leave the size out")
    if kind == "nvme" and not is_address(place):
        refuse_in_use(place, force)
        return open(kind, place, True)
    if address := address_in(place):
        refuse_controller_in_use(address, force)
    device = open(kind, place, True)
    try:
        refuse_contents(device.name, device.serial, device.read, device.nbytes, force)
    except BaseException:
        device.close()
        raise
    return device


def _native(kind: str, name: str, devices: list[str] | list[tuple[int, int]]) -> BlockStore:
    try:
        with translate_native_errors(name):
            return BlockStore(devices, 0, kind, _ALIGNMENT)
    except RefusedError as error:
        raise TransferError(errno.EIO, f"driver {kind} ({error})", name) from None
