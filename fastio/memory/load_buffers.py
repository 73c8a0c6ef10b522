"""The memory that a load fills: one storage for each record of a file, made once, owned by the load.

Invariants, which every load relies on:

* Only the reader sees this memory before it is filled and checked. It may hold bytes of an earlier load until then, for
  pages are used again. So :meth:`LoadBuffers.storage` is called after that.
* A record has one storage. Whoever asks for it again, such as a second unpickler after the first gave up, gets the same
  one. The load keeps all of them until it returns, so no page is given back, used again or advised before.
* A storage holds the bytes of its record and nothing else: neither headers nor neighbours can be reached through it.

After the load returned, a storage that dies gives the pages back that are wholly its own, and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from fastio import _native
from fastio.runtime.native_errors import translate_native_errors
from fastio.transports.transport import Extent, Span

_PAGE, _HUGE_PAGE = 4096, 2 << 20
# From here on several threads read, a block of the file each.
_LARGE = 32 << 20
# The alignment that the processor asks of the widest numbers: a storage of any must start on a multiple of it.
_WIDEST = 8
_APART = 64  # storages that mirror no file begin in a cache line of their own
# Of bytes that are not wanted so many are read along with those between which they lie, besides an eighth of these.
_MOST_GAPS, _HEADER = 1 << 20, 256
_torch: Any = torch._C


class Region(NamedTuple):
    """The bytes of one storage in a file.

    ``crc`` is what their CRC-32 must be, where the format has any. ``header`` is the offset of the header in front of
    them that says where they begin; None where the format has none.
    """

    name: str
    offset: int
    nbytes: int
    crc: int
    header: int | None = None

    @property
    def begin(self) -> int:
        """Where the region begins in the file, with its header."""
        return self.offset if self.header is None else self.header


def is_aligned(offset: int, itemsize: int) -> bool:
    """Whether numbers of that size may lie there."""
    return offset % min(itemsize, _WIDEST) == 0


class LoadBuffers:
    """Memory for ``regions`` (sorted by offset) on ``device``, and the extents that fill it.

    On the CPU one mapping mirrors the file from the first region's header to the last region's end, and each storage is
    a slice of it. On a device, and where a region lies at an odd offset or much else lies between them, each storage
    has memory of its own, and ``span`` is None.

    Args:
        path: what errors call the file.
        checksum: extents ask for CRCs.
        aligned: each region begins in the file at a multiple of its numbers' size.

    Raises TransferError where the system has no memory.
    """

    def __init__(
        self, path: str, regions: Sequence[Region], device: torch.device, checksum: bool, aligned: bool = False
    ) -> None:
        self.span: Span | None = None
        self.extents: list[Extent] = []
        self._mapping: Any = None
        self._starts: dict[str, int] = {}
        self._storages: dict[str, torch.UntypedStorage] = {}
        with translate_native_errors(path):
            if not regions:
                return
            if device.type != "cpu":
                self._allocate(regions, device, checksum)
            elif _can_mirror(regions, aligned):
                self._mirror(regions, checksum)
            else:
                self._pack(regions, checksum)

    def storage(self, region: Region) -> torch.UntypedStorage:
        """The storage of a region: always the same one. KeyError if there is no memory for it."""
        found = self._storages.get(region.name)
        if found is not None:
            return found
        if region.nbytes == 0:
            return empty_storage()  # each its own: tensors without elements share nothing
        start = self._starts[region.name]
        found = self._storages[region.name] = bytes_of(self._mapping, start, region.nbytes).untyped_storage()
        return found

    def _mirror(self, regions: Sequence[Region], checksum: bool) -> None:
        """A large mirror begins as far behind a huge page's beginning as its bytes in the file behind a multiple of
        that size. So blocks of the file that begin at such multiples share no huge page, and no two threads fault in
        the same one, for which both would clear one and one throw its own away."""
        begin = regions[0].begin // _PAGE * _PAGE
        end = _end(regions)
        origin = begin - (begin % _HUGE_PAGE if end - begin >= _LARGE else 0)
        self._mapping = _native.Mapping(end - origin, used=True)
        self.span = Span(begin, end - begin, self._mapping.address + begin - origin)
        self._extend(self._mapping, regions, [region.offset - origin for region in regions], checksum)

    def _pack(self, regions: Sequence[Region], checksum: bool) -> None:
        """All in one mapping: a process may have 65,530 of these, and a file more tensors."""
        starts = list(accumulate((-(-region.nbytes // _APART) * _APART for region in regions), initial=0))
        self._mapping = _native.Mapping(starts.pop(), used=True)
        self._extend(self._mapping, regions, starts, checksum)

    def _extend(
        self, mapping: _native.Mapping, regions: Sequence[Region], starts: Sequence[int], checksum: bool
    ) -> None:
        base = mapping.address
        self._starts = {region.name: start for region, start in zip(regions, starts, strict=True)}
        self.extents = [
            Extent(offset, nbytes, base + start, checksum, "cpu", mapping, name)
            for (name, offset, nbytes, _, _), start in zip(regions, starts, strict=True)
        ]

    def _allocate(self, regions: Sequence[Region], device: torch.device, checksum: bool) -> None:
        for name, offset, nbytes, *_ in regions:
            storage = self._storages[name] = torch.UntypedStorage(nbytes, device=device)
            self.extents.append(Extent(offset, nbytes, storage.data_ptr(), checksum, device.type, storage, name))


def _can_mirror(regions: Sequence[Region], aligned: bool) -> bool:
    if not aligned and any(region.offset % _WIDEST for region in regions):
        return False
    wanted = sum(nbytes for _, _, nbytes, _, _ in regions)
    return _end(regions) - regions[0].begin - wanted <= _MOST_GAPS + wanted // 8 + _HEADER * len(regions)


def _end(regions: Sequence[Region]) -> int:
    return max(offset + nbytes for _, offset, nbytes, _, _ in regions)


def bytes_of(mapping: _native.Mapping, offset: int, nbytes: int) -> torch.Tensor:
    """A part of a mapping, at least one byte, as uint8; the mapping goes with the last tensor on it.

    Its storage cannot be resized: a tensor that does not fit is an error, as in torch.
    """
    return torch.frombuffer(_native.Slice(mapping, offset, nbytes), dtype=torch.uint8)


def empty_storage() -> torch.UntypedStorage:
    """A storage of no bytes as torch's reader makes it: it has no address, and cannot be resized."""
    storage: torch.UntypedStorage = _torch._construct_storage_from_data_pointer(0, torch.device("cpu"), 0)
    return storage
