"""Describes what a rank reads of an item in a data file: all of it, or a part if the number of ranks changed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

import torch
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner, ReadItem

from fastio.distributed.stored_items import Stored
from fastio.transports import selection
from fastio.transports.transport import LOAD

_Entry = TypeVar("_Entry")


class Piece(NamedTuple):
    """Bytes that are read and checked together: ``nbytes`` from their byte ``skip`` on belong at byte ``at``."""

    stored: Stored
    skip: int
    nbytes: int
    at: int

    def is_wanted(self) -> bool:
        """Return whether all bytes are wanted, so that they can be read into place."""
        return self.nbytes == self.stored.nbytes


class ReadRequest(NamedTuple):
    """What is read of one item in the file, from index ``begin`` on, and all of DCP's items that need a part of it.

    ``whole`` is the item, if blocks of it are read.
    """

    stored: Stored
    items: Sequence[ReadItem]
    begin: tuple[int, ...] = ()
    whole: Stored | None = None

    def offsets(self, item: ReadItem) -> tuple[int, ...]:
        """Return the index at which ``item``'s part begins in the tensor that is read."""
        return tuple(map(operator.sub, item.storage_offsets, self.begin or (0,) * len(item.storage_offsets)))

    def shrink(self, checks: bool) -> ReadRequest:
        """Return a request for the shortest run of bytes that holds all parts needed.

        If it ``checks`` them, these are whole blocks with CRC-32s, or the item; else their CRC-32 is not known.
        """
        if any(item.type == LoadItemType.BYTE_IO for item in self.items):
            return self
        begins = [item.storage_offsets for item in self.items]
        ends = [map(operator.add, item.storage_offsets, item.lengths) for item in self.items]
        begin, end = tuple(map(min, zip(*begins, strict=False))), tuple(map(max, zip(*ends, strict=False)))
        part = self.stored.checked_part(begin, end) if checks else self.stored.part(begin, end)
        if part is None or part.nbytes == self.stored.nbytes:
            return self
        return ReadRequest(part, self.items, begin, self.stored if checks else None)

    def pieces(self) -> Iterator[Piece]:
        """Yield what is read of a packed part: whole blocks that it fills, and those at its ends."""
        whole, part = self.whole, self.stored.without_rest()
        if whole is None or whole.blocks is None:
            yield Piece(self.stored, 0, self.stored.nbytes, 0)
            return
        block, begin = whole.blocks.block, part.offset - whole.offset
        end = begin + part.nbytes
        first, last = -(-begin // block) * block, end if end == whole.nbytes else end // block * block
        for low, high in pairwise((begin, first, last, end) if first < last else (begin, end)):
            if low < high:
                start, stop, crc = whole.blocks.around(low, high)
                read = whole._replace(offset=whole.offset + start, nbytes=stop - start, crc=crc)
                yield Piece(read, low - start, high - low, low - begin)

    def target(self, planner: LoadPlanner, file_format: str) -> torch.Tensor | None:
        """Return the tensor into which the bytes of the part can be read directly; None if they need a buffer."""
        stored, item = self.stored.without_rest() if self.whole is not None else self.stored, self.items[0]
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
        if kind != "cpu" and self.whole is not None:
            return None
        if kind != "cpu" and not selection.able(LOAD, file_format, frozenset({kind}), "object")[0]:
            return None
        return target


def batches(entries: Iterable[_Entry], nbytes_of: Callable[[_Entry], int], most: int) -> Iterator[list[_Entry]]:
    """Yield batches of at most ``most`` bytes together; a larger entry is alone."""
    batch: list[_Entry] = []
    nbytes = 0
    for entry in entries:
        added = nbytes_of(entry)
        if batch and nbytes + added > most:
            yield batch
            batch, nbytes = [], 0
        batch.append(entry)
        nbytes += added
    if batch:
        yield batch
