"""The entries of a ``.safetensors`` header: one tensor each. They are made when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from fastio._native import HeaderRows
from fastio.formats.safetensors.dtypes import DTYPES


class Entry(NamedTuple):
    """One tensor: ``nbytes`` bytes at ``offset`` of the file, with torch's dtype and shape.

    ``stored_dtype`` and ``stored_shape`` are those of the header; they differ for dtypes that torch packs. ``stride``
    counts elements; None for a contiguous tensor. ``crc`` is the CRC-32 of the bytes, if the file has one.
    """

    dtype: torch.dtype
    shape: list[int]
    offset: int
    nbytes: int
    stored_dtype: str
    stored_shape: list[int]
    stride: list[int] | None = None
    crc: int | None = None


class HeaderEntries(Mapping[str, Entry]):
    """The entries of a header that was checked: ``rows``, and the ``index`` of each name's, in the header's order.

    ``start`` is where the tensors begin in the file.
    """

    def __init__(self, rows: HeaderRows, index: dict[str, int], start: int) -> None:
        self.rows = rows
        self.index = index
        self._start = start
        self._made: dict[str, Entry] = {}

    def __getitem__(self, name: str) -> Entry:
        entry = self._made.get(name)
        if entry is None:
            dtype, shape, begin, end = self.rows.row(self.index[name])
            entry = self._made[name] = Entry(DTYPES[dtype], shape, self._start + begin, end - begin, dtype, shape)
        return entry

    def __iter__(self) -> Iterator[str]:
        return iter(self.index)

    def __len__(self) -> int:
        return len(self.index)

    def __contains__(self, name: object) -> bool:
        return name in self.index
