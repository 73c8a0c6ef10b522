"""Lays out the items of a rank in its data file, one after the other, each as a file of torch.save.

DCP's own storage does the same, so it can read these files. Here a large tensor's bytes start on a page of the file,
and stay where they are in memory until a transport moves them.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from fastio._native import ZipBuilder, crc32
from fastio.distributed.stored_items import FORMAT, Record
from fastio.errors import FormatError, UnsupportedError
from fastio.formats.layout import Layout, LayoutBuilder, storage_offset_bytes
from fastio.formats.pt import torch_probe, writer
from fastio.formats.pt.records import pickled
from fastio.memory.raw_memory import bytes_at
from fastio.transports import selection
from fastio.transports.transport import SAVE

_TORCH_ALIGNMENT = 64
# An item of up to this many bytes is cheaper to copy among the file's literal bytes than to move as an extent.
_LARGEST_COPY = 16 << 10
_PICKLE_PROTOCOL = 2


class PlacedItem(NamedTuple):
    """An item's place in the file.

    ``extent`` is the number of the layout's extent that holds its record; -1 if ``record`` has the CRC already.
    """

    index: Any
    offset: int
    nbytes: int
    record: Record
    extent: int


class Inlined(NamedTuple):
    """Where an item's bytes are in a file's literal bytes: from ``at`` on, and their CRC-32 at each of ``crcs``.

    ``item`` is its number. ``source``: the address of a tensor's bytes; None for a whole file of torch.save.
    """

    item: int
    at: int
    nbytes: int
    source: int | None
    crcs: Sequence[int]


class Image(NamedTuple):
    """The layout of a whole data file, and the place of each of its items.

    ``is_repeatable``: it refers to the memory of the tensors themselves, and of no copies.
    """

    layout: Layout
    items: Sequence[PlacedItem]
    inlined: Sequence[Inlined]
    is_repeatable: bool

    def again(self, files: Mapping[str, bytearray]) -> Image:
        """Return it for what the memory of the tensors holds now, and for other ``files`` of torch.save, by name.

        All have the same sizes as before. This image is of no use then: they share the literal bytes.
        """
        layout, items = self.layout, list(self.items)
        for number, at, nbytes, source, places in self.inlined:
            item = items[number]
            data = files[item.index.fqn] if source is None else ctypes.string_at(source, nbytes)
            layout.literal[at : at + nbytes] = data
            crc = crc32(data)
            for place in places:
                layout.literal[place : place + 4] = crc.to_bytes(4, "little")
            if crc != item.record.crc:
                items[number] = item._replace(record=item.record._replace(crc=crc))
        extents = list(layout.extents)
        for item in items:
            if item.record.dtype is None and item.extent >= 0:
                storage = torch.frombuffer(files[item.index.fqn], dtype=torch.uint8).untyped_storage()
                extents[item.extent] = extents[item.extent]._replace(address=storage.data_ptr(), owner=storage)
        return self._replace(layout=layout._replace(extents=extents), items=items)


class ImageBuilder:
    """Builds an :class:`Image` item by item."""

    def __init__(self) -> None:
        self._builder = LayoutBuilder()
        self._literal = bytearray()
        self._runs: list[tuple[int, int, int]] = []
        self._patches: list[tuple[int, int]] = []
        self._end = 0
        self._extents = 0
        self._items: list[PlacedItem] = []
        self._inlined: list[Inlined] = []
        self._is_repeatable = True
        self._pickles: dict[tuple[Any, ...], list[tuple[str, bytes]]] = {}

    def add(self, index: Any, data: torch.Tensor | io.BytesIO) -> None:
        """Add a planner's data for one item. Its memory must not change until the file is written.

        UnsupportedError for a sparse tensor, which DCP could not load again; FormatError for one without data.
        """
        if isinstance(data, torch.Tensor):
            if data.is_meta:
                raise FormatError(
                    f"{index.fqn!r} has a shape, but no data (it is on the meta device); give it some first, as by "
                    "to_empty() and loading the weights, or leave it out"
                )
            if data.layout != torch.strided:
                raise UnsupportedError(
                    f"{index.fqn!r} is a tensor of the layout {data.layout}, which DCP cannot load: save it dense "
                    "(to_dense()), or its parts (indices, values) as tensors of their own"
                )
            plain = data.detach()
            tensor = _movable(plain)
            self._is_repeatable &= tensor is plain
            if tensor is not None:
                self._add_tensor(index, tensor)
                return
            stream = io.BytesIO()
            torch.save(data.detach().cpu(), stream)
            data = stream
        self.add_bytes(index, data.getbuffer())

    def build(self) -> Image:
        """Return the image. Nothing may be added afterwards."""
        self._align(0)  # so that direct writes end on a page
        layout = self._builder.build(self._literal, self._runs, self._patches, self._end)
        numbers = [number for number, extent in enumerate(layout.extents) if extent.checksum]
        items = [item if item.extent < 0 else item._replace(extent=numbers[item.extent]) for item in self._items]
        return Image(layout, items, self._inlined, self._is_repeatable)

    def _add_tensor(self, index: Any, tensor: torch.Tensor) -> None:
        nbytes = tensor.numel() * tensor.element_size()
        inline = nbytes <= _LARGEST_COPY and tensor.device.type == "cpu"
        archive = ZipBuilder("archive", _TORCH_ALIGNMENT)
        for name, data in self._pickle(tensor):
            archive.add_bytes(name, data)
        start = archive.add_extent("data/0", nbytes)
        archive.add_bytes("version", b"3\n")
        archive.finish()
        own, patches = bytearray(archive), archive.patches()
        if not inline:
            self._align(start)
        offset, crc, extent = self._end, 0, -1
        if inline:
            payload = ctypes.string_at(tensor.data_ptr(), nbytes) if nbytes else b""
            crc = crc32(payload)
            for patch, _ in patches:
                position = patch if patch < start else patch - nbytes
                own[position : position + 4] = crc.to_bytes(4, "little")
            literal = len(self._literal)
            places = [literal + patch for patch, _ in patches]
            if nbytes:
                self._inlined.append(Inlined(len(self._items), literal + start, nbytes, tensor.data_ptr(), places))
            self._put(own[:start] + payload + own[start:])
            self._builder.add_payload(nbytes)
        else:
            self._put(own[:start])
            extent = self._move(tensor, nbytes, index.fqn)
            self._put(own[start:])
            self._patches += [(offset + patch, extent) for patch, _ in patches]
        record = Record(start, nbytes, crc, tensor.dtype, tuple(tensor.shape))
        self._items.append(PlacedItem(index, offset, self._end - offset, record, extent))

    def add_bytes(self, index: Any, data: memoryview) -> None:
        """Add a whole file of torch.save, whose memory must not change either."""
        inline = data.nbytes <= _LARGEST_COPY
        if not inline:
            self._align(0)
        offset, crc, extent = self._end, 0, -1
        if inline:
            self._inlined.append(Inlined(len(self._items), len(self._literal), data.nbytes, None, ()))
            self._put(data)
            crc = crc32(data)
            self._builder.add_payload(data.nbytes)
        else:
            extent = self._move(torch.frombuffer(data, dtype=torch.uint8), data.nbytes, index.fqn)
        self._items.append(PlacedItem(index, offset, data.nbytes, Record(0, data.nbytes, crc, None, None), extent))

    def _pickle(self, tensor: torch.Tensor) -> list[tuple[str, bytes]]:
        """Return the small records of a contiguous tensor. Tensors of one shape share them: pickling takes 100 us."""
        key = (tensor.dtype, tuple(tensor.shape), tensor.device)
        found = self._pickles.get(key)
        if found is None:
            found = [
                (name, str(_TORCH_ALIGNMENT).encode() if name == ".storage_alignment" else data)
                for name, data in pickled(_alone(tensor), _PICKLE_PROTOCOL).small
            ]
            identity = hashlib.blake2b(b"".join(name.encode() + data for name, data in found), digest_size=16)
            number = str(int.from_bytes(identity.digest(), "big")).zfill(40)[:40]
            found.append((".data/serialization_id", number.encode()))
            self._pickles[key] = found
        return found

    def _move(self, tensor: torch.Tensor, nbytes: int, name: str) -> int:
        """Append a tensor's bytes as an extent; return its number."""
        storage = tensor.untyped_storage()
        self._builder.add_storage(self._end, storage, nbytes, name, checksum=True, start=storage_offset_bytes(tensor))
        self._end += nbytes
        self._extents += 1
        return self._extents - 1

    def _put(self, data: bytes | bytearray | memoryview) -> None:
        """Append literal bytes."""
        start = len(self._literal)
        self._literal += data
        added = len(self._literal) - start
        if not added:
            return
        offset, begin, nbytes = self._runs[-1] if self._runs else (0, 0, 0)
        if self._runs and offset + nbytes == self._end:
            self._runs[-1] = (offset, begin, nbytes + added)
        else:
            self._runs.append((self._end, start, added))
        self._end += added

    def _align(self, start: int) -> None:
        """Append padding so that byte ``start`` of the next item lies on a page."""
        self._put(bytes(-(self._end + start) % writer.PAGE))


def _movable(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a contiguous tensor that a transport can move, copied only if needed; None if torch.save must write it."""
    if (
        type(tensor) is not torch.Tensor
        or tensor.layout != torch.strided
        or tensor.is_quantized
        or torch_probe.unsupported_reason()
    ):
        return None
    kind = tensor.device.type
    if kind != "cpu" and not selection.able(SAVE, FORMAT, frozenset({kind}), "object")[0]:
        tensor = tensor.cpu()
    return tensor.resolve_conj().resolve_neg().contiguous()


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor over a storage of only its bytes, because torch.save writes whole storages."""
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes == 0:
        return torch.empty_like(tensor)
    return bytes_at(tensor.data_ptr(), nbytes, tensor.device).view(tensor.dtype).view(tensor.shape)
