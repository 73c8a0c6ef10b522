"""Opens a block store: chooses the driver from its places, and refuses devices that hold data."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from fastio._native import BlockStore
from fastio.errors import RefusedError, TransferError
from fastio.memory.raw_memory import view
from fastio.nvme.safety import refuse_contents, refuse_controller_in_use
from fastio.offload.stores.namespaces import open_namespace
from fastio.offload.stores.store_errors import BLOCK
from fastio.offload.stores.store_places import Place, open_place
from fastio.runtime.native_errors import translate_native_errors

_OWN_DEVICES = ("vfio", "spdk")  # drivers that open controllers themselves: only they can read what these hold
_NAMED = ("nvme", *_OWN_DEVICES)  # drivers that are named by a prefix of the place
DRIVERS = ("uring", "threads", *_NAMED)


def open_store(
    places: Sequence[str | os.PathLike[str]], capacity: int, driver: str | None, force: str | None
) -> tuple[BlockStore, str, list[Place], list[str]]:
    """Open a store of ``capacity`` bytes (0: all there is). Return it, its driver, its places, and notes.

    The store closes the places; the caller closes their claims after it. Raises as
    :class:`fastio.offload.BlockStore` says.
    """
    name, paths = choose_driver(places, driver)
    opened: list[Place] = []
    notes: list[str] = []
    try:
        for path in paths:
            opened.append(_open(name, path, force))
        native, name = _native_store(opened, capacity // BLOCK, name, notes)
    except BaseException as error:
        # After Ctrl-C in the last call the native store may own them, and closes them itself.
        if isinstance(error, Exception) or len(opened) < len(paths):
            for place in opened:
                place.close()
        raise
    known = native.devices()
    if name in _OWN_DEVICES:
        try:
            for number, (device, blocks, _, _, serial) in enumerate(known):
                refuse_contents(device, serial, _reader(native, name, number, device), blocks * BLOCK, force)
        except BaseException:
            native.close()
            raise
    notes += [f"{place.path}: no direct I/O, so through the page cache" for place in opened if not place.direct]
    for number, (_, blocks, lba_bytes, _, _) in enumerate(known):
        opened[number] = replace(opened[number], lba_bytes=lba_bytes, drive=number, drive_nbytes=blocks * BLOCK)
    return native, name, opened, notes


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


def pci_address(driver: str, name: str) -> str:
    """Return the PCI address of "0000:03:00.0/2" or "trtype=PCIe traddr=0000:03:00.0"; "" for a network controller."""
    if driver == "vfio":
        return name.partition("/")[0]
    fields = {key.lower(): value for key, value in re.findall(r"(\w+)[=:](\S+)", name)}
    return fields.get("traddr", "") if fields.get("trtype", "").lower() == "pcie" else ""


def _open(driver: str, path: str, force: str | None) -> Place:
    """Open a place, or name a controller that the driver will take over. DeviceInUseError if it is in use."""
    if driver == "nvme":
        return open_namespace(path, force)
    if driver not in _OWN_DEVICES:
        return open_place(path, force)
    address = pci_address(driver, path)
    if address:
        refuse_controller_in_use(address, force)
    return Place(path)


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


def _native_store(places: Sequence[Place], limit: int, driver: str, notes: list[str]) -> tuple[BlockStore, str]:
    """Return a store and its driver: "threads" instead of "uring" if need be, with a note."""
    names = [place.path for place in places]
    devices = names if driver in _OWN_DEVICES else [(place.fd, place.fixed_blocks) for place in places]
    try:
        with translate_native_errors(", ".join(names)):
            return BlockStore(devices, limit, driver, max(place.memory_alignment for place in places)), driver
    except RefusedError as error:
        if driver != "uring":
            raise TransferError(errno.EIO, f"driver {driver} ({error})", ", ".join(names)) from None
        notes.append(f"driver 'threads' instead of 'uring': {error}")
    return _native_store(places, limit, "threads", notes)
