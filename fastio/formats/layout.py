"""Describes every byte of a file to be written: literal bytes in memory, and extents of storages."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from fastio.memory.raw_memory import synchronize
from fastio.transports.transport import Extent, Patch


class NonContiguousTensor(NamedTuple):
    """A tensor to be packed row by row into ``nbytes`` bytes at ``offset``; its memory has another order."""

    offset: int
    nbytes: int
    tensor: torch.Tensor


Part = Extent | NonContiguousTensor


class DigestPlace(NamedTuple):
    """Where the checksums of a tensor belong, as hex digits: in ``literal``, which begins the file, before the tensor.

    ``offset`` is the tensor's in the file. ``crc32`` is where 8 digits belong, ``sha256`` where 64 do, if wanted.
    """

    name: str
    offset: int
    crc32: int
    sha256: int | None


class Layout(NamedTuple):
    """A whole file of ``size`` bytes: ``extents`` (sorted), and ``patches`` where checksums belong.

    ``payload`` is the number of tensor bytes, ``devices`` where they are. ``literal`` holds the format's own bytes,
    and those of tensors too small for an extent. ``strided`` (sorted) holds the tensors that no transport can move:
    they lie between the extents, and must be packed. ``digests``: ``literal`` is the file's header, and gets checksums
    of extents and strided tensors. ``trimmed``: see :class:`fastio.formats.pt.records.Records`.
    """

    size: int
    extents: Sequence[Extent]
    patches: Sequence[Patch]
    payload: int
    devices: frozenset[str]
    literal: bytearray | memoryview
    strided: Sequence[NonContiguousTensor] = ()
    digests: Sequence[DigestPlace] = ()
    trimmed: bool = False

    @property
    def parts(self) -> list[Part]:
        """The extents and the strided tensors, in the order of their offsets."""
        parts: list[Part] = [*self.extents, *self.strided]
        return sorted(parts, key=lambda part: part.offset)

    def used_devices(self) -> set[torch.device]:
        """The devices that the tensors are on, with their indices."""
        used = {torch.device("cpu")} if "cpu" in self.devices else set()
        if self.devices <= {"cpu"}:
            return used
        used |= {extent.owner.device for extent in self.extents if extent.device != "cpu"}
        return used | {one.tensor.device for one in self.strided}

    def synchronize(self) -> None:
        """Wait for the GPUs that compute the storages' values."""
        synchronize({extent.owner.device for extent in self.extents if extent.device != "cpu"})


class LayoutBuilder:
    """Builds a :class:`Layout` from a format's own bytes and storages."""

    def __init__(self) -> None:
        self._payload = 0
        self._extents: list[Extent] = []
        self._devices: set[str] = set()
        self._strided: list[NonContiguousTensor] = []

    def add_storage(
        self, offset: int, storage: torch.UntypedStorage, nbytes: int, name: str, checksum: bool, start: int = 0
    ) -> None:
        """Place bytes ``start`` to ``start + nbytes`` of a storage at ``offset``. Offsets must rise."""
        device = storage.device.type
        self._extents.append(Extent(offset, nbytes, storage.data_ptr() + start, checksum, device, storage, name))
        self._devices.add(device)
        self._payload += nbytes

    def add_tensor(self, offset: int, tensor: torch.Tensor, name: str, checksum: bool = False) -> None:
        """Place the elements of a dense tensor, at least one, at ``offset``, row by row. Offsets must rise."""
        plain = tensor.detach()
        if plain.is_contiguous() and not plain.is_conj() and not plain.is_neg():
            self.add_storage(offset, plain.untyped_storage(), plain.nbytes, name, checksum, storage_offset_bytes(plain))
        else:
            self._strided.append(NonContiguousTensor(offset, plain.nbytes, plain))
            self._devices.add(plain.device.type)
            self._payload += plain.nbytes

    def add_payload(self, nbytes: int) -> None:
        """Count ``nbytes`` of tensors that were copied among the literal bytes."""
        self._payload += nbytes

    def build(
        self,
        literal: bytearray | memoryview,
        runs: Sequence[tuple[int, int, int]],
        patches: Sequence[tuple[int, int]],
        size: int,
        digests: Sequence[DigestPlace] = (),
    ) -> Layout:
        """Return the layout.

        ``runs`` are (offset in the file, start in ``literal``, nbytes), sorted. ``patches`` are (offset, number of the
        storage in the order of :meth:`add_storage`).
        """
        base = address_of(literal)
        # Merge two sorted lists. Patches need the index of each storage's extent in the result.
        extents: list[Extent] = []
        extent_indices = []
        index = 0
        for extent in self._extents:
            while index < len(runs) and runs[index][0] < extent.offset:
                extents.append(_literal_extent(runs[index], base, literal))
                index += 1
            extent_indices.append(len(extents))
            extents.append(extent)
        extents.extend(_literal_extent(run, base, literal) for run in runs[index:])
        crc_patches = [Patch(offset, extent_indices[number]) for offset, number in patches]
        devices = frozenset(self._devices)
        return Layout(size, extents, crc_patches, self._payload, devices, literal, self._strided, digests)


def _literal_extent(run: tuple[int, int, int], base: int, literal: bytearray | memoryview) -> Extent:
    offset, start, nbytes = run
    return Extent(offset, nbytes, base + start, False, "cpu", literal, "")


def address_of(buffer: bytearray | memoryview) -> int:
    """Return the address of a writable buffer's memory. The buffer must not be resized afterwards."""
    if not buffer:
        return 0
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


def storage_offset_bytes(tensor: Any) -> int:
    """Return the byte of its storage at which a tensor starts."""
    return int(tensor.storage_offset()) * int(tensor.element_size())
