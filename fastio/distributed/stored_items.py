"""Describes items in a data file before they are read: their bytes, their CRC-32, and the tensors they make."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from fastio.formats.block_checksums import BlockChecksums

FORMAT = "distcp"
"""The name of DCP's data files in dictionaries and results, after their suffix."""

_ATTRIBUTE = "fastio"
_BLOCKS = "fastio_blocks"  # apart, so that versions that do not know of blocks read the rest


class Record(NamedTuple):
    """The payload of an item: ``nbytes`` from its ``start``, with their CRC-32, if it is known.

    These are the bytes of a contiguous tensor or, if ``dtype`` and ``size`` are None, a whole file of torch.save.
    """

    start: int
    nbytes: int
    crc: int | None
    dtype: torch.dtype | None
    size: tuple[int, ...] | None


class Stored(NamedTuple):
    """An item of an open data file; ``offset`` is that of its bytes in the file, ``crc`` is None if it is unknown.

    ``dtype`` is None for a file of torch.save; else the bytes are a storage, in which the tensor has that geometry.
    ``blocks`` has the CRC-32s of its blocks, if they are known.
    """

    name: str
    offset: int
    nbytes: int
    crc: int | None
    dtype: torch.dtype | None = None
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    first: int = 0
    blocks: BlockChecksums | None = None

    def tensor(self, storage: torch.Tensor) -> torch.Tensor:
        """Return the tensor over its bytes, which are given as uint8."""
        if self.dtype is None:
            raise TypeError(f"{self.name} is not a plain tensor")
        return storage.view(self.dtype).as_strided(self.size, self.stride, self.first)

    def is_packed(self) -> bool:
        """Return whether the bytes are exactly those of a contiguous tensor."""
        if self.dtype is None or self.first:
            return False
        steps = zip(self.size, self.stride, contiguous(self.size), strict=True)
        if any(length > 1 and step != packed for length, step, packed in steps):
            return False
        return self.nbytes == math.prod(self.size) * self.dtype.itemsize

    def part(self, begin: Sequence[int], end: Sequence[int]) -> Stored | None:
        """Return the shortest run of bytes that holds the elements from index ``begin`` up to ``end``.

        Its CRC-32 is not known. None if this is not a plain tensor, or has no such elements.
        """
        if self.dtype is None or len(begin) != len(self.size):
            return None
        size = tuple(map(operator.sub, end, begin))
        bounds = zip(begin, size, self.size, strict=True)
        if any(start < 0 or length < 0 or start + length > limit for start, length, limit in bounds):
            return None
        first = self.first + sum(map(operator.mul, begin, self.stride))
        last = first + sum((length - 1) * step for length, step in zip(size, self.stride, strict=True))
        width = self.dtype.itemsize
        nbytes = (last + 1 - first) * width if all(size) else 0
        if first * width + nbytes > self.nbytes:
            return None
        return Stored(self.name, self.offset + first * width, nbytes, None, self.dtype, size, self.stride)

    def without_rest(self) -> Stored:
        """Return what the tensor itself has of :meth:`checked_part`, if it is packed there."""
        if self.dtype is None:
            return self
        width = self.dtype.itemsize
        return self._replace(
            offset=self.offset + self.first * width, nbytes=math.prod(self.size) * width, crc=None, first=0
        )

    def checked_part(self, begin: Sequence[int], end: Sequence[int]) -> Stored | None:
        """Return :meth:`part` with the rest of its first and its last block, and the CRC-32 of all that is read.

        None also if the CRC-32s of blocks are unknown.
        """
        part = None if self.blocks is None else self.part(begin, end)
        if part is None or self.blocks is None or part.dtype is None or not part.nbytes:
            return part
        at = part.offset - self.offset
        start, stop, crc = self.blocks.around(at, at + part.nbytes)
        first = (at - start) // part.dtype.itemsize
        return part._replace(offset=self.offset + start, nbytes=stop - start, crc=crc, first=first)


def annotate(info: Any, record: Record, blocks: BlockChecksums | None = None) -> None:
    """Attach a record, and CRC-32s of its blocks, to an entry of DCP's metadata. DCP's own reader ignores them."""
    setattr(info, _ATTRIBUTE, tuple(record))
    if blocks is not None:
        setattr(info, _BLOCKS, (blocks.block, blocks.crcs))


def annotation(info: Any, name: str) -> Stored | None:
    """Return what :func:`annotate` attached; None if another writer made the entry."""
    fields = getattr(info, _ATTRIBUTE, None)
    if fields is None:
        return None
    record = Record(*fields)
    size = record.size or ()
    offset = info.offset + record.start
    blocks = getattr(info, _BLOCKS, None)
    known = None if blocks is None else BlockChecksums(record.nbytes, *blocks)
    return Stored(name, offset, record.nbytes, record.crc, record.dtype, size, contiguous(size), 0, known)


def contiguous(size: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    strides, step = [], 1
    for length in reversed(size):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))
