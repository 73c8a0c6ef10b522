"""The layout of a file that is about to be written: every byte of it, in memory or as an extent of a tensor."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastio.transport import Extent, Patch


@dataclass(frozen=True, slots=True)
class Layout:
    """A whole file: ``size`` bytes, made of ``extents`` (sorted), with checksums to be put in at ``patches``.

    ``payload`` is the number of tensor bytes, ``devices`` where they are. ``literal`` holds all bytes
    that are not tensors; the extents with ``checksum=False`` point into it.
    """

    size: int
    extents: Sequence[Extent]
    patches: Sequence[Patch]
    payload: int
    devices: frozenset[str]
    literal: bytearray


class LayoutBuilder:
    """Puts a file together in order: literal bytes and storages."""

    def __init__(self) -> None:
        self.offset = 0
        self._payload = 0
        self._literal = bytearray()
        self._runs: list[tuple[int, int, int]] = []  # offset in file, start in literal, nbytes
        self._extents: list[Extent] = []
        self._devices: set[str] = set()
        self.patches: list[Patch] = []

    def add_literal(self, data: bytes) -> None:
        """Append bytes that belong to the format."""
        start = len(self._literal)
        self._literal += data
        runs = self._runs
        if runs and runs[-1][0] + runs[-1][2] == self.offset:
            runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + len(data))
        else:
            runs.append((self.offset, start, len(data)))
        self.offset += len(data)

    def add_storage(self, storage: torch.UntypedStorage, nbytes: int, name: str, checksum: bool, start: int = 0) -> int:
        """Append ``nbytes`` of a storage from byte ``start``. Gives a number for :meth:`add_patch`."""
        device = storage.device.type
        address = storage.data_ptr() + start
        self._extents.append(Extent(self.offset, nbytes, address, checksum, device, storage, name))
        self._devices.add(device)
        self._payload += nbytes
        self.offset += nbytes
        return len(self._extents) - 1

    def add_patch(self, offset: int, storage: int) -> None:
        """The CRC-32 of a storage belongs at ``offset``, in a literal that comes later in the file."""
        self.patches.append(Patch(offset, storage))

    def build(self) -> Layout:
        """The finished layout."""
        base = address_of(self._literal)
        literals = [Extent(offset, n, base + at, False, "cpu", self._literal, "") for offset, at, n in self._runs]
        # Both lists are sorted; where each storage lands among the literals is needed for the patches.
        extents: list[Extent] = []
        places = [0] * len(self._extents)
        index = 0
        for number, extent in enumerate(self._extents):
            while index < len(literals) and literals[index].offset < extent.offset:
                extents.append(literals[index])
                index += 1
            places[number] = len(extents)
            extents.append(extent)
        extents.extend(literals[index:])
        patches = sorted(Patch(offset, places[number]) for offset, number in self.patches)
        devices = frozenset(self._devices)
        return Layout(self.offset, extents, patches, self._payload, devices, self._literal)


def address_of(buffer: bytearray) -> int:
    """The address of a bytearray's memory, which must not be resized from now on."""
    if not buffer:
        return 0
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def storage_bytes(tensor: Any) -> int:
    """The byte at which a tensor starts in its storage."""
    return int(tensor.storage_offset()) * int(tensor.element_size())
