"""The layout of a file that is about to be written: every byte of it, in memory or as an extent of a tensor."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from fastio.memory.raw_memory import synchronize
from fastio.transports.transport import Extent, Patch


class NonContiguousTensor(NamedTuple):
    """A tensor whose ``nbytes`` bytes do not lie in memory as they belong in the file, at ``offset``, row by row."""

    offset: int
    nbytes: int
    tensor: torch.Tensor


class Layout(NamedTuple):
    """A whole file: ``size`` bytes, made of ``extents`` (sorted), with checksums to be put in at ``patches``.

    ``payload`` is the number of tensor bytes, ``devices`` where they are. ``literal`` holds the format's own bytes,
    and those of tensors too small to be worth an extent. ``strided`` (sorted) is what no transport can move: it lies
    between the extents, and is packed.
    """

    size: int
    extents: Sequence[Extent]
    patches: Sequence[Patch]
    payload: int
    devices: frozenset[str]
    literal: bytearray | memoryview
    strided: Sequence[NonContiguousTensor] = ()

    def settle(self) -> None:
        """Wait for the GPUs that compute what the storages hold."""
        synchronize({extent.owner.device for extent in self.extents if extent.device != "cpu"})


class LayoutBuilder:
    """Puts a file together of its own bytes and storages, in any order."""

    def __init__(self) -> None:
        self._payload = 0
        self._extents: list[Extent] = []
        self._devices: set[str] = set()
        self._strided: list[NonContiguousTensor] = []

    def add_storage(
        self, offset: int, storage: torch.UntypedStorage, nbytes: int, name: str, checksum: bool, start: int = 0
    ) -> None:
        """Bytes ``start`` to ``start + nbytes`` of a storage belong at ``offset``. Offsets must rise."""
        device = storage.device.type
        self._extents.append(Extent(offset, nbytes, storage.data_ptr() + start, checksum, device, storage, name))
        self._devices.add(device)
        self._payload += nbytes

    def add_tensor(self, offset: int, tensor: torch.Tensor, name: str) -> None:
        """The elements of a dense tensor, at least one, belong at ``offset``, row by row. Offsets must rise."""
        plain = tensor.detach()
        if plain.is_contiguous() and not plain.is_conj() and not plain.is_neg():
            self.add_storage(offset, plain.untyped_storage(), plain.nbytes, name, False, storage_bytes(plain))
        else:
            self._strided.append(NonContiguousTensor(offset, plain.nbytes, plain))
            self._devices.add(plain.device.type)
            self._payload += plain.nbytes

    def add_payload(self, nbytes: int) -> None:
        """Count tensor bytes that are among the literal ones."""
        self._payload += nbytes

    def build(
        self,
        literal: bytearray | memoryview,
        runs: Sequence[tuple[int, int, int]],
        patches: Sequence[tuple[int, int]],
        size: int,
    ) -> Layout:
        """The layout. ``runs`` says where the literal lies: (offset in the file, start in it, nbytes), sorted.

        ``patches`` are (offset, number of the storage in the order of :meth:`add_storage`).
        """
        base = address_of(literal)
        # Both lists are sorted; where each storage lands among the literals is needed for the patches.
        extents: list[Extent] = []
        places = []
        index = 0
        for extent in self._extents:
            while index < len(runs) and runs[index][0] < extent.offset:
                extents.append(_literal_extent(runs[index], base, literal))
                index += 1
            places.append(len(extents))
            extents.append(extent)
        extents.extend(_literal_extent(run, base, literal) for run in runs[index:])
        placed = [Patch(offset, places[number]) for offset, number in patches]
        return Layout(size, extents, placed, self._payload, frozenset(self._devices), literal, self._strided)


def _literal_extent(run: tuple[int, int, int], base: int, literal: bytearray | memoryview) -> Extent:
    offset, start, nbytes = run
    return Extent(offset, nbytes, base + start, False, "cpu", literal, "")


def address_of(buffer: bytearray | memoryview) -> int:
    """The address of a writable buffer's memory, which must not be resized from now on."""
    if not buffer:
        return 0
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def storage_bytes(tensor: Any) -> int:
    """The byte at which a tensor starts in its storage."""
    return int(tensor.storage_offset()) * int(tensor.element_size())
