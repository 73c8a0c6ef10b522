"""Where loaded bytes land: memory for every region of a file, before the first byte is read.

On the CPU one fresh huge-page mapping mirrors the file, and each storage is its own slice of it. A storage that
dies gives its pages back; the mapping goes with the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy
import torch

from fastio import _native
from fastio.native_errors import named
from fastio.transport import Extent, Span

_PAGE, _HUGE_PAGE = 4096, 2 << 20
# From here on several threads read, a block of the file each.
_LARGE = 32 << 20
# The alignment that the processor asks of the widest numbers: a storage of any must start on a multiple of it.
_WIDEST = 8
_APART = 64  # storages that mirror no file begin in a cache line of their own


class Region(NamedTuple):
    """The bytes of one storage in a file. ``crc`` is what their CRC-32 must be, where the format has any."""

    name: str
    offset: int
    nbytes: int
    crc: int


def is_aligned(offset: int, itemsize: int) -> bool:
    """Whether numbers of that size may lie there."""
    return offset % min(itemsize, _WIDEST) == 0


class Landing(Protocol):
    """Memory for regions."""

    @property
    def span(self) -> Span | None: ...

    @property
    def extents(self) -> Sequence[Extent]: ...

    def storage(self, region: Region) -> torch.UntypedStorage: ...


def land(path: str, regions: Sequence[Region], device: torch.device, checksum: bool, aligned: bool = False) -> Landing:
    """Memory for ``regions`` (sorted by offset) on ``device``; extents ask for CRCs if ``checksum``.

    ``aligned``: each begins in the file at a multiple of its numbers' size.
    """
    with named(path):
        if device.type != "cpu" or not regions:
            return _Scattered(regions, [torch.UntypedStorage(r.nbytes, device=device) for r in regions], checksum)
        if aligned or all(is_aligned(region.offset, _WIDEST) for region in regions):
            return _Mirror(regions, checksum)
        return _Scattered(regions, _side_by_side(regions), checksum)


class _Mirror:
    """Host memory that mirrors the file from the first region to the last.

    A large one begins as far behind the beginning of a huge page as its bytes in the file behind a multiple of that
    size. So blocks of the file that begin at such multiples share no huge page, and no two threads fault in the same
    one, for which both would clear one and one throw its own away.
    """

    def __init__(self, regions: Sequence[Region], checksum: bool) -> None:
        begin = regions[0].offset // _PAGE * _PAGE
        end = max(region.offset + region.nbytes for region in regions)
        self._origin = begin - (begin % _HUGE_PAGE if end - begin >= _LARGE else 0)
        self._mapping = _native.Mapping(end - self._origin, used=True)
        base = self._mapping.address - self._origin
        self.span: Span | None = Span(begin, end - begin, base + begin)
        self.extents = [
            Extent(offset, nbytes, base + offset, checksum, "cpu", self._mapping, name)
            for name, offset, nbytes, _ in regions
        ]

    def storage(self, region: Region) -> torch.UntypedStorage:
        return _storage_of(self._mapping, region.offset - self._origin, region.nbytes)


class _Scattered:
    """Storages that mirror no file: on devices, and where a file's offsets are too odd."""

    def __init__(self, regions: Sequence[Region], storages: Sequence[torch.UntypedStorage], checksum: bool) -> None:
        self.span: Span | None = None
        self._storages = {region.name: storage for region, storage in zip(regions, storages, strict=True)}
        self.extents = [
            Extent(offset, nbytes, storage.data_ptr(), checksum, storage.device.type, storage, name)
            for (name, offset, nbytes, _), storage in zip(regions, storages, strict=True)
        ]

    def storage(self, region: Region) -> torch.UntypedStorage:
        found = self._storages.get(region.name)
        return found if found is not None else _empty()


def _side_by_side(regions: Sequence[Region]) -> list[torch.UntypedStorage]:
    """A storage for each, all in one mapping: a process may have 65,530 of these, and a file more tensors."""
    starts = list(accumulate((-(-region.nbytes // _APART) * _APART for region in regions), initial=0))
    mapping = _native.Mapping(starts.pop(), used=True)
    return [_storage_of(mapping, start, region.nbytes) for region, start in zip(regions, starts, strict=True)]


def bytes_of(mapping: _native.Mapping, offset: int, nbytes: int) -> torch.Tensor:
    """A part of a mapping, at least one byte, as uint8; the mapping goes with the last tensor on it."""
    return torch.frombuffer(_native.Slice(mapping, offset, nbytes), dtype=torch.uint8)


def _storage_of(mapping: _native.Mapping, offset: int, nbytes: int) -> torch.UntypedStorage:
    """A storage over a part of a mapping. It cannot be resized: a tensor that does not fit is an error, as in torch."""
    return bytes_of(mapping, offset, nbytes).untyped_storage() if nbytes else _empty()


def _empty() -> torch.UntypedStorage:
    return torch.from_numpy(numpy.empty(0, numpy.uint8)).untyped_storage()
