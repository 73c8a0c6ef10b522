"""Extents of the rows of matrices, in short: one entry stands for the same part of many rows.

The columns that one of several ranks holds of a weight are an extent a row: tens of thousands a file. Python takes as
long to make them one by one as the page cache takes to deliver their bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, overload

from fastio.transports.transport import Extent


class Rows(NamedTuple):
    """``repeats`` extents that begin ``stride`` bytes apart in the file, and lie one behind the other in host memory.

    The first fields are those of the first extent. No checksums are computed.
    """

    offset: int
    nbytes: int
    address: int
    checksum: bool
    device: str
    owner: Any
    name: str
    repeats: int
    stride: int

    def extent(self, number: int) -> Extent:
        """One of the extents."""
        offset, address = self.offset + number * self.stride, self.address + number * self.nbytes
        return Extent(offset, self.nbytes, address, False, self.device, self.owner, self.name)


class ExtentRows(Sequence[Extent]):
    """A sequence of extents, sorted and apart, that is made of single ones and of rows.

    Native transfers read ``entries`` instead, and make the extents themselves.
    """

    def __init__(self, entries: Sequence[Extent | Rows]) -> None:
        self.entries = entries
        counts = (entry.repeats if isinstance(entry, Rows) else 1 for entry in entries)
        self._ends = list(accumulate(counts))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Extent: ...
    @overload
    def __getitem__(self, index: slice) -> list[Extent]: ...
    def __getitem__(self, index: int | slice) -> Extent | list[Extent]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]  # also of negative ones; IndexError
        place = bisect_right(self._ends, number)
        entry = self.entries[place]
        return entry.extent(number - self._ends[place] + entry.repeats) if isinstance(entry, Rows) else entry

    def __iter__(self) -> Iterator[Extent]:
        for entry in self.entries:
            if isinstance(entry, Rows):
                yield from map(entry.extent, range(entry.repeats))
            else:
                yield entry


def entries(extents: Sequence[Extent]) -> Sequence[Extent | Rows]:
    """The entries that extents are made of."""
    return extents.entries if isinstance(extents, ExtentRows) else extents


def total_nbytes(extents: Sequence[Extent]) -> int:
    """The bytes of all extents."""
    return sum(entry.nbytes * (entry.repeats if isinstance(entry, Rows) else 1) for entry in entries(extents))
