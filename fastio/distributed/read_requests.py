"""What a rank wants of an item of a data file: all of it, or after ranks have become more or fewer a part."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner, ReadItem

from fastio.distributed.stored_items import FORMAT, Stored
from fastio.engine import tool_selection
from fastio.transports.transport import LOAD


class Wanted(NamedTuple):
    """What is read of one item of the file, from the index ``begin`` on, and all that wants a part of it."""

    stored: Stored
    items: Sequence[ReadItem]
    begin: tuple[int, ...] = ()

    def offsets(self, item: ReadItem) -> tuple[int, ...]:
        """The index, in what is read, from which on ``item`` wants it."""
        return tuple(map(operator.sub, item.storage_offsets, self.begin or (0,) * len(item.storage_offsets)))

    def least(self) -> Wanted:
        """The same with one run of bytes, the shortest that holds all that is wanted. Its CRC-32 is not known."""
        if any(item.type == LoadItemType.BYTE_IO for item in self.items):
            return self
        begins = [item.storage_offsets for item in self.items]
        ends = [map(operator.add, item.storage_offsets, item.lengths) for item in self.items]
        begin, end = tuple(map(min, zip(*begins, strict=False))), tuple(map(max, zip(*ends, strict=False)))
        part = self.stored.part(begin, end)
        return self if part is None else Wanted(part, self.items, begin)

    def target(self, planner: LoadPlanner) -> torch.Tensor | None:
        """The tensor that the bytes are to be read straight into; None if they must be read aside."""
        stored, item = self.stored, self.items[0]
        if len(self.items) > 1 or item.type == LoadItemType.BYTE_IO or not stored.is_packed() or not stored.nbytes:
            return None
        if tuple(item.lengths) != stored.size or any(self.offsets(item)):
            return None
        target = planner.resolve_tensor(item).detach()
        kind = target.device.type
        if type(target) is not torch.Tensor or tuple(target.shape) != stored.size or target.dtype != stored.dtype:
            return None
        if not target.is_contiguous() or target.is_conj() or target.is_neg():
            return None
        if kind != "cpu" and not tool_selection.candidates(LOAD, FORMAT, frozenset({kind}))[0]:
            return None
        return target


def batches(wanted: Sequence[Wanted], most: int) -> Iterator[list[Wanted]]:
    """Some after some, of at most so many bytes together; what is larger is alone."""
    batch: list[Wanted] = []
    nbytes = 0
    for want in wanted:
        if batch and nbytes + want.stored.nbytes > most:
            yield batch
            batch, nbytes = [], 0
        batch.append(want)
        nbytes += want.stored.nbytes
    if batch:
        yield batch
