"""What is known of an item in a data file before it is read: its bytes, their CRC-32, and the tensor they make."""

from __future__ import annotations

import math
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
        if self.dtype is None or self.first or self.stride != contiguous(self.size):
            return False
        return self.nbytes == math.prod(self.size) * self.dtype.itemsize


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
