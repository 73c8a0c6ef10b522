"""What is known of an item in a data file before it is read: its bytes, their CRC-32, and the tensor they make."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

FORMAT = "distcp"
"""What dictionaries and results call DCP's data files, after their suffix."""

_ATTRIBUTE = "fastio"


class Record(NamedTuple):
    """The bytes of an item that matter: ``nbytes`` from its ``start``, with their CRC-32.

    They are a contiguous tensor's own, or with ``dtype`` and ``size`` None, all that torch.save wrote of something
    else.
    """

    start: int
    nbytes: int
    crc: int
    dtype: torch.dtype | None
    size: tuple[int, ...] | None


class Stored(NamedTuple):
    """An item of an open data file. ``offset`` is that of its bytes in the file; ``crc`` is None where nobody noted it.

    ``dtype`` is None for what torch.save wrote; else the bytes are a storage, in which the tensor has that geometry.
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
        """The tensor over its bytes, given as uint8."""
        if self.dtype is None:
            raise TypeError(f"{self.name} is no plain tensor")
        return storage.view(self.dtype).as_strided(self.size, self.stride, self.first)

    def is_packed(self) -> bool:
        """Whether the bytes are exactly a contiguous tensor's."""
        if self.dtype is None or self.first:
            return False
        steps = zip(self.size, self.stride, contiguous(self.size), strict=True)
        if any(length > 1 and step != packed for length, step, packed in steps):
            return False
        return self.nbytes == math.prod(self.size) * self.dtype.itemsize

    def part(self, begin: Sequence[int], end: Sequence[int]) -> Stored | None:
        """The elements from index ``begin`` up to ``end``: the shortest run of bytes that holds them.

        Its CRC-32 is not known. None where this is no plain tensor, or has no such elements.
        """
        if self.dtype is None or len(begin) != len(self.size):
            return None
        size = tuple(map(operator.sub, end, begin))
        if any(at < 0 or length < 0 or at + length > of for at, length, of in zip(begin, size, self.size, strict=True)):
            return None
        first = self.first + sum(map(operator.mul, begin, self.stride))
        last = first + sum((length - 1) * step for length, step in zip(size, self.stride, strict=True))
        width = self.dtype.itemsize
        nbytes = (last + 1 - first) * width if all(size) else 0
        if first * width + nbytes > self.nbytes:
            return None
        return Stored(self.name, self.offset + first * width, nbytes, None, self.dtype, size, self.stride)


def annotate(info: Any, record: Record) -> None:
    """Note a record beside an entry of DCP's metadata. DCP's own reader passes over it."""
    setattr(info, _ATTRIBUTE, tuple(record))


def noted(info: Any, name: str) -> Stored | None:
    """What :func:`annotate` left; None if another writer made the entry."""
    note = getattr(info, _ATTRIBUTE, None)
    if note is None:
        return None
    record = Record(*note)
    size = record.size or ()
    offset = info.offset + record.start
    return Stored(name, offset, record.nbytes, record.crc, record.dtype, size, contiguous(size))


def contiguous(size: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides, step = [], 1
    for length in reversed(size):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))
