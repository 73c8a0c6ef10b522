"""The entries of a ``.safetensors`` header: one tensor each. They are made when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

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
    """The entries of a parsed header, ``fields``, that was checked: dtypes that torch does not pack, and no holes.

    ``start`` is where the tensors begin in the file; ``in_order`` are their names by offset.
    """

    def __init__(self, fields: dict[str, Any], start: int, in_order: list[str]) -> None:
        self.fields = fields
        self.in_order = in_order
        self._start = start
        self._made: dict[str, Entry] = {}

    def __getitem__(self, name: str) -> Entry:
        entry = self._made.get(name)
        if entry is None:
            fields = self.fields[name]
            dtype, shape, (begin, end) = fields["dtype"], fields["shape"], fields["data_offsets"]
            entry = Entry(DTYPES[dtype], shape, self._start + begin, end - begin, dtype, shape)
            self._made[name] = entry
        return entry

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def __contains__(self, name: object) -> bool:
        return name in self.fields
