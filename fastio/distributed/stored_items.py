"""Describes items in a data file before they are read: their bytes, their CRC-32, and the tensors they make."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

FORMAT = "distcp"
"""The name of DCP's data files in dictionaries and results, after their suffix."""

_ATTRIBUTE = "fastio"


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
    """

    name: str
    offset: int
    nbytes: int
    crc: int | None
    dtype: torch.dtype | None = None
    size: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    first: int = 0

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


def annotate(info: Any, record: Record) -> None:
    """Attach a record to an entry of DCP's metadata. DCP's own reader ignores it."""
    setattr(info, _ATTRIBUTE, tuple(record))


def annotation(info: Any, name: str) -> Stored | None:
    """Return what :func:`annotate` attached; None if another writer made the entry."""
    fields = getattr(info, _ATTRIBUTE, None)
    if fields is None:
        return None
    record = Record(*fields)
    size = record.size or ()
    offset = info.offset + record.start
    return Stored(name, offset, record.nbytes, record.crc, record.dtype, size, contiguous(size))


def contiguous(size: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    strides, step = [], 1
    for length in reversed(size):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))
