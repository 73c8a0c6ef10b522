"""The memory that a load fills: one storage per record of a file, created once, owned by the load.

Every load relies on these invariants:

* Only the reader sees this memory before it is filled and checked. Until then it may hold bytes of an earlier load,
  because pages are reused. So :meth:`LoadBuffers.storage` is called only afterwards.
* A record has one storage. A second request for it, as by a second unpickler after the first failed, returns the same
  one. The load keeps all of them until it returns, so no page is released, reused or advised before.
* A storage holds the bytes of its record and nothing else: it gives no access to headers or neighbours.

After the load has returned, a storage that dies releases the pages that are entirely its own, and no others. Pinned
memory is released with the last storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch

from fastio._native import Mapping, Slice
from fastio.memory.pinned_memory import pinned, pinned_bytes
from fastio.memory.shared_memory import check_room, shared_storage
from fastio.memory.staging_buffers import HostMemory
from fastio.runtime.native_errors import translate_native_errors
from fastio.transports.transport import Extent, Span

_PAGE, _HUGE_PAGE = 4096, 2 << 20
# From this size on several threads read, a block of the file each.
_LARGE = 32 << 20
# The alignment that torch's kernels require for the widest numbers, complex128: storages start on a multiple of it.
_WIDEST = 16
_CACHE_LINE = 64  # packed storages begin in a cache line of their own
# A mirror may read that many unneeded bytes, plus an eighth of the needed ones, plus a header for each region.
_MOST_GAPS, _HEADER = 1 << 20, 256
_torch: Any = torch._C
PINNED, SHARED = "pinned", "shared"
"""The kinds of host memory that a load can be asked for."""


class Region(NamedTuple):
    """The bytes of one storage in a file.

    ``crc`` is their expected CRC-32, if the format has one. ``header`` is the offset of the header in front of them
    that says where they begin, or None if the format has no such header.
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
    """Whether numbers of ``itemsize`` bytes may lie at ``offset``."""
    return offset % min(itemsize, _WIDEST) == 0


def may_hold_any(offset: int) -> bool:
    """Whether numbers of every size may lie at ``offset``."""
    return offset % _WIDEST == 0


class LoadBuffers:
    """Memory for ``regions`` (sorted by offset) on ``device``, and the extents that fill it.

    On the CPU one mapping mirrors the file from the first region's header to the last region's end, and each storage is
    a slice of it. Otherwise ``span`` is None: where a region is unaligned or the gaps are large, storages are packed
    into one mapping; on a device each storage has memory of its own.

    Args:
        path: the file's name in errors.
        checksum: whether extents request CRCs.
        aligned: whether each region begins in the file at a multiple of its numbers' size.
        into: the kind of host memory: ``PINNED``, ``SHARED`` (then each storage has memory of its own), or None.

    Raises TransferError if memory runs out.
    """

    def __init__(
        self,
        path: str,
        regions: Sequence[Region],
        device: torch.device,
        checksum: bool,
        aligned: bool = False,
        into: str | None = None,
    ) -> None:
        self._path = path
        self._into = into
        self._device = device
        self.span: Span | None = None
        self.extents: list[Extent] = []
        self._mapping: Any = None
        self._starts: dict[Region, int] = {}
        self._storages: dict[Region, torch.UntypedStorage] = {}
        try:
            with translate_native_errors(path):
                self._make(regions, device, checksum, aligned)
        except BaseException:
            self.release()
            raise

    def _make(self, regions: Sequence[Region], device: torch.device, checksum: bool, aligned: bool) -> None:
        if not regions:
            return
        if device.type != "cpu" or self._into == SHARED:
            self._allocate(regions, device, checksum)
        elif _can_mirror(regions, aligned):
            self._mirror(regions, checksum)
        else:
            self._pack(regions, checksum)

    def storage(self, region: Region) -> torch.UntypedStorage:
        """The storage of a region: always the same one. Raises KeyError for an unknown region."""
        found = self._storages.get(region)
        if found is not None:
            return found
        if region.nbytes == 0:
            # A new one each time: tensors without elements share nothing.
            if self._device.type != "cpu":
                return torch.UntypedStorage(0, device=self._device)
            return shared_storage(self._path, 0, region.name) if self._into == SHARED else empty_storage()
        start = self._starts[region]
        made = pinned_bytes if self._into == PINNED else bytes_of
        found = self._storages[region] = made(self._mapping, start, region.nbytes).untyped_storage()
        return found

    def _map(self, nbytes: int) -> Mapping | HostMemory:
        return pinned(self._path, nbytes) if self._into == PINNED else Mapping(nbytes, used=True)

    def release(self) -> None:
        """Forget the storages after a failed load: the frames of its error must not keep their memory."""
        self._storages.clear()
        self.extents.clear()
        self._mapping = None

    def _mirror(self, regions: Sequence[Region], checksum: bool) -> None:
        """Map the whole range of the file, with the file's alignment.

        A large mirror's address and file offset agree modulo the size of a huge page. So blocks of the file that begin
        at multiples of that size share no huge page. Two threads that fault in the same one would both clear a page,
        and one of them would be thrown away.
        """
        begin = regions[0].begin // _PAGE * _PAGE
        end = _end(regions)
        origin = begin - (begin % _HUGE_PAGE if end - begin >= _LARGE else 0)
        self._mapping = self._map(end - origin)
        self.span = Span(begin, end - begin, self._mapping.address + begin - origin)
        self._extend(self._mapping, regions, [region.offset - origin for region in regions], checksum)

    def _pack(self, regions: Sequence[Region], checksum: bool) -> None:
        """Put all storages in one mapping: a process may have 65,530 mappings, and a file more tensors."""
        starts = list(accumulate((-(-region.nbytes // _CACHE_LINE) * _CACHE_LINE for region in regions), initial=0))
        self._mapping = self._map(starts.pop())
        self._extend(self._mapping, regions, starts, checksum)

    def _extend(
        self, mapping: Mapping | HostMemory, regions: Sequence[Region], starts: Sequence[int], checksum: bool
    ) -> None:
        base = mapping.address
        self._starts = dict(zip(regions, starts, strict=True))
        self.extents = [
            Extent(offset, nbytes, base + start, checksum, "cpu", mapping, name)
            for (name, offset, nbytes, _, _), start in zip(regions, starts, strict=True)
        ]

    def _allocate(self, regions: Sequence[Region], device: torch.device, checksum: bool) -> None:
        if self._into == SHARED:
            check_room(self._path, sum(-(-region.nbytes // _PAGE) * _PAGE for region in regions))
        for region in regions:
            name, offset, nbytes, *_ = region
            if self._into == SHARED:
                storage = shared_storage(self._path, nbytes, name)
            else:
                storage = torch.UntypedStorage(nbytes, device=device)
            self._storages[region] = storage
            self.extents.append(Extent(offset, nbytes, storage.data_ptr(), checksum, device.type, storage, name))


def _can_mirror(regions: Sequence[Region], aligned: bool) -> bool:
    if not aligned and not all(may_hold_any(region.offset) for region in regions):
        return False
    wanted = sum(nbytes for _, _, nbytes, _, _ in regions)
    return _end(regions) - regions[0].begin - wanted <= _MOST_GAPS + wanted // 8 + _HEADER * len(regions)


def _end(regions: Sequence[Region]) -> int:
    return max(offset + nbytes for _, offset, nbytes, _, _ in regions)


def bytes_of(mapping: Mapping, offset: int, nbytes: int) -> torch.Tensor:
    """A part of a mapping, at least one byte, as a uint8 tensor; the mapping lives as long as any tensor on it.

    Its storage cannot be resized: a tensor that does not fit raises an error, as in torch.
    """
    return torch.frombuffer(Slice(mapping, offset, nbytes), dtype=torch.uint8)


def empty_storage() -> torch.UntypedStorage:
    """A storage of 0 bytes as torch.load creates it: without an address, and not resizable."""
    storage: torch.UntypedStorage = _torch._construct_storage_from_data_pointer(0, torch.device("cpu"), 0)
    return storage
