"""Describes what a rank reads of an item in a data file: all of it, or a part if the number of ranks changed."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner, ReadItem

from fastio.distributed.stored_items import Stored
from fastio.transports import selection
from fastio.transports.transport import LOAD


class ReadRequest(NamedTuple):
    """What is read of one item in the file, from index ``begin`` on, and all of DCP's items that need a part of it."""

    stored: Stored
    items: Sequence[ReadItem]
    begin: tuple[int, ...] = ()

    def offsets(self, item: ReadItem) -> tuple[int, ...]:
        """Return the index at which ``item``'s part begins in the tensor that is read."""
        return tuple(map(operator.sub, item.storage_offsets, self.begin or (0,) * len(item.storage_offsets)))

    def shrink(self) -> ReadRequest:
        """Return a request for the shortest run of bytes that holds all parts needed. Its CRC-32 is not known."""
        if any(item.type == LoadItemType.BYTE_IO for item in self.items):
            return self
        begins = [item.storage_offsets for item in self.items]
        ends = [map(operator.add, item.storage_offsets, item.lengths) for item in self.items]
        begin, end = tuple(map(min, zip(*begins, strict=False))), tuple(map(max, zip(*ends, strict=False)))
        part = self.stored.part(begin, end)
        return self if part is None else ReadRequest(part, self.items, begin)

    def target(self, planner: LoadPlanner, file_format: str) -> torch.Tensor | None:
        """Return the tensor into which the bytes can be read directly; None if they need a buffer."""
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
        if kind != "cpu" and not selection.able(LOAD, file_format, frozenset({kind}), "object")[0]:
            return None
        return target


def batches(requests: Sequence[ReadRequest], most: int) -> Iterator[list[ReadRequest]]:
    """Yield batches of at most ``most`` bytes together; a larger request is alone."""
    batch: list[ReadRequest] = []
    nbytes = 0
    for request in requests:
        if batch and nbytes + request.stored.nbytes > most:
            yield batch
            batch, nbytes = [], 0
        batch.append(request)
        nbytes += request.stored.nbytes
    if batch:
        yield batch
