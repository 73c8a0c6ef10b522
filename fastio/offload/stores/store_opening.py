"""Opens a block store: chooses the driver from its places, and refuses devices that hold data."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from fastio._native import BlockStore
from fastio.errors import RefusedError, TransferError
from fastio.memory.raw_memory import view
from fastio.nvme.safety import refuse_contents, refuse_controller_in_use
from fastio.offload.stores.namespaces import close_namespace, open_namespaces
from fastio.offload.stores.store_errors import BLOCK
from fastio.offload.stores.store_places import close_places, open_places
from fastio.runtime.native_errors import translate_native_errors

_NAMED = ("nvme", "vfio", "spdk")  # drivers that are named by a prefix of the place
DRIVERS = ("uring", "threads", *_NAMED)
_ALIGNMENT = 4  # of addresses in NVMe commands; a driver may require more


@dataclass(frozen=True, slots=True)
class OpenStore:
    """A native store and its properties. ``lba_bytes`` is per place; ``claims`` are closed after the store."""

    native: BlockStore
    driver: str
    places: tuple[str, ...]
    lba_bytes: tuple[int, ...]
    drive_nbytes: int
    whole_pages: bool
    notes: tuple[str, ...] = ()
    claims: tuple[int, ...] = ()


def open_store(
    places: Sequence[str | os.PathLike[str]], capacity: int, driver: str | None, force: str | None
) -> OpenStore:
    """Open a store of ``capacity`` bytes (0: all there is). Raises as :class:`fastio.offload.BlockStore` says."""
    name, paths = choose_driver(places, driver)
    limit = capacity // BLOCK
    if name == "nvme":
        return _on_namespaces(paths, limit, force)
    if name in ("vfio", "spdk"):
        return _on_controllers(paths, limit, name, force)
    return _on_places(paths, limit, name, force)


def choose_driver(places: Sequence[str | os.PathLike[str]], driver: str | None) -> tuple[str, list[str]]:
    """Return the driver and the paths for places such as "nvme:/dev/ng0n1", or for a named driver.

    ValueError for an unknown driver, or places of several drivers.
    """
    if driver is not None and driver not in DRIVERS:
        raise ValueError(f"unknown driver {driver!r}: expected one of {', '.join(DRIVERS)}")
    if not places:
        raise ValueError(f"store={places!r}: expected at least one folder, file or device")
    paths, kinds = [], set()
    names = [os.fspath(place) for place in places]
    for place in names:
        prefix, colon, rest = place.partition(":")
        paths.append(rest if colon and prefix in _NAMED else place)
        kinds.add(prefix if colon and prefix in _NAMED else driver or "uring")
    if len(kinds) > 1 or (driver is not None and kinds != {driver}):
        asked = f" ({driver!r} was requested)" if driver is not None else ""
        raise ValueError(f"all places of a store are of one driver{asked}, but these are not: {', '.join(names)}")
    return kinds.pop(), paths


def _on_places(paths: Sequence[str], limit: int, driver: str, force: str | None) -> OpenStore:
    opened = open_places(paths, force)
    names = tuple(place.path for place in opened)
    alignment = max(place.memory_alignment for place in opened)
    notes: list[str] = []
    try:
        devices = [(place.fd, place.fixed_blocks) for place in opened]
        native, driver = _open_kernel_driver(devices, names, limit, driver, alignment, notes)
    except Exception:  # not Ctrl-C: the native store may own them by then, and closes them itself
        close_places(opened)
        raise
    notes += [f"{place.path}: no direct I/O, so through the page cache" for place in opened if not place.direct]
    drives = {place.drive: place.drive_nbytes for place in opened}
    return OpenStore(
        native=native,
        driver=driver,
        places=names,
        lba_bytes=(BLOCK,) * len(opened),
        drive_nbytes=sum(drives.values()),
        whole_pages=all(place.tolerates_changes for place in opened),
        notes=tuple(notes),
    )


def _on_namespaces(paths: Sequence[str], limit: int, force: str | None) -> OpenStore:
    opened = open_namespaces(paths, force)
    names = tuple(namespace.path for namespace in opened)
    try:
        native = _native_store([(namespace.fd, 0) for namespace in opened], names, limit, "nvme", _ALIGNMENT)
    except Exception as error:  # not Ctrl-C, as above
        for namespace in opened:
            close_namespace(namespace)
        if isinstance(error, RefusedError):
            raise _unusable("nvme", error, names) from None
        raise
    return _on_devices(native, "nvme", names, tuple(namespace.claim for namespace in opened if namespace.claim >= 0))


def _on_controllers(names: Sequence[str], limit: int, driver: str, force: str | None) -> OpenStore:
    """Open a store on controllers that a user-level driver takes over; only it can read what they hold."""
    for name in names:
        address = pci_address(driver, name)
        if address:
            refuse_controller_in_use(address, force)
    try:
        native = _native_store(names, names, limit, driver, _ALIGNMENT)
    except RefusedError as error:
        raise _unusable(driver, error, names) from None
    try:
        for number, (name, blocks, _, _, serial) in enumerate(native.devices()):
            refuse_contents(name, serial, _reader(native, driver, number, name), blocks * BLOCK, force)
    except BaseException:
        native.close()
        raise
    return _on_devices(native, driver, tuple(names), ())


def pci_address(driver: str, name: str) -> str:
    """Return the PCI address of "0000:03:00.0/2" or "trtype=PCIe traddr=0000:03:00.0"; "" for a network controller."""
    if driver == "vfio":
        return name.partition("/")[0]
    fields = {key.lower(): value for key, value in re.findall(r"(\w+)[=:](\S+)", name)}
    return fields.get("traddr", "") if fields.get("trtype", "").lower() == "pcie" else ""


def _on_devices(native: BlockStore, driver: str, places: tuple[str, ...], claims: tuple[int, ...]) -> OpenStore:
    devices = native.devices()
    return OpenStore(
        native=native,
        driver=driver,
        places=places,
        lba_bytes=tuple(lba_bytes for _, _, lba_bytes, _, _ in devices),
        drive_nbytes=sum(blocks * BLOCK for _, blocks, _, _, _ in devices),
        whole_pages=True,  # no filesystem or kernel layer computes checksums
        claims=claims,
    )


def _reader(native: BlockStore, driver: str, number: int, name: str) -> Callable[[int, int], bytes]:
    """Return a function of (offset, nbytes) that reads a device of the store."""

    def read(offset: int, nbytes: int) -> bytes:
        memory = torch.empty(nbytes, dtype=torch.uint8)
        with translate_native_errors(name):
            failure = native.peek(number, offset // BLOCK, memory.data_ptr(), nbytes)
        if failure is not None:
            raise TransferError(failure[0], f"driver {driver}: reading what is there", name, offset)
        return bytes(view(memory.data_ptr(), nbytes))

    return read


def _open_kernel_driver(
    devices: Sequence[tuple[int, int]], names: Sequence[str], limit: int, driver: str, alignment: int, notes: list[str]
) -> tuple[BlockStore, str]:
    try:
        return _native_store(devices, names, limit, driver, alignment), driver
    except RefusedError as error:
        if driver != "uring":
            raise _unusable(driver, error, names) from None
        notes.append(f"driver 'threads' instead of 'uring': {error}")
    return _open_kernel_driver(devices, names, limit, "threads", alignment, notes)


def _native_store(
    devices: Sequence[tuple[int, int]] | Sequence[str], names: Sequence[str], limit: int, driver: str, alignment: int
) -> BlockStore:
    with translate_native_errors(", ".join(names)):
        return BlockStore(devices, limit, driver, alignment)


def _unusable(driver: str, error: RefusedError, names: Sequence[str]) -> TransferError:
    return TransferError(errno.EIO, f"driver {driver} ({error})", ", ".join(names))
