"""Where loaded bytes land: memory for every region of a file, before the first byte is read.

On the CPU one fresh huge-page mapping mirrors the file, and each storage is its own slice of it. A storage that
dies gives its pages back; the mapping goes with the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy
import torch

from fastio import _native
from fastio.native_errors import named
from fastio.transport import Extent, Span

_PAGE = 4096
# The alignment that the processor asks of the widest numbers: a storage must start on a multiple of it.
_ALIGNMENT = 8


class Region(NamedTuple):
    """The bytes of one storage in a file. ``crc`` is what their CRC-32 must be, where the format has any."""

    name: str
    offset: int
    nbytes: int
    crc: int


class Landing(Protocol):
    """Memory for regions."""

    @property
    def span(self) -> Span | None: ...

    @property
    def extents(self) -> Sequence[Extent]: ...

    def storage(self, region: Region) -> torch.UntypedStorage: ...


def land(path: str, regions: Sequence[Region], device: torch.device, checksum: bool) -> Landing:
    """Memory for ``regions`` (sorted by offset) on ``device``; extents ask for CRCs if ``checksum``."""
    aligned = all(region.offset % _ALIGNMENT == 0 for region in regions)
    if device.type == "cpu" and aligned and regions:
        with named(path):
            return _Mirror(regions, checksum)
    return _Scattered(regions, device, checksum)


class _Mirror:
    """Host memory that mirrors the file from the first region to the last."""

    def __init__(self, regions: Sequence[Region], checksum: bool) -> None:
        begin = regions[0].offset // _PAGE * _PAGE
        end = max(region.offset + region.nbytes for region in regions)
        self._begin = begin
        self._mapping = _native.Mapping(end - begin, used=True)
        base = self._mapping.address - begin
        self.span: Span | None = Span(begin, end - begin, self._mapping.address)
        self.extents = [
            Extent(offset, nbytes, base + offset, checksum, "cpu", self._mapping, name)
            for name, offset, nbytes, _ in regions
        ]

    def storage(self, region: Region) -> torch.UntypedStorage:
        return _storage_of(self._mapping, region.offset - self._begin, region.nbytes)


class _Scattered:
    """A storage of its own for each region: on devices, and where a file's offsets are too odd to mirror."""

    def __init__(self, regions: Sequence[Region], device: torch.device, checksum: bool) -> None:
        self.span: Span | None = None
        self._storages = {r.name: _storage_on(device, r.nbytes) for r in regions}
        self.extents = []
        for name, offset, nbytes, _ in regions:
            storage = self._storages[name]
            self.extents.append(Extent(offset, nbytes, storage.data_ptr(), checksum, device.type, storage, name))

    def storage(self, region: Region) -> torch.UntypedStorage:
        found = self._storages.get(region.name)
        return found if found is not None else _storage_on(torch.device("cpu"), 0)


def bytes_of(mapping: _native.Mapping, offset: int, nbytes: int) -> torch.Tensor:
    """A part of a mapping, at least one byte, as uint8; the mapping goes with the last tensor on it."""
    return torch.frombuffer(_native.Slice(mapping, offset, nbytes), dtype=torch.uint8)


def _storage_of(mapping: _native.Mapping, offset: int, nbytes: int) -> torch.UntypedStorage:
    """A storage over a part of a mapping. It cannot be resized: a tensor that does not fit is an error, as in torch."""
    if nbytes == 0:
        return torch.from_numpy(numpy.empty(0, numpy.uint8)).untyped_storage()
    return bytes_of(mapping, offset, nbytes).untyped_storage()


def _storage_on(device: torch.device, nbytes: int) -> torch.UntypedStorage:
    if device.type == "cpu":
        return _storage_of(_native.Mapping(nbytes, used=True), 0, nbytes)
    return torch.UntypedStorage(nbytes, device=device)
