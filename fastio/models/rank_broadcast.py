"""Broadcasts tensors that one rank has to the same tensors of the others, straight from memory to memory.

Small tensors are sent together, by way of a buffer. Large ones whose elements do not lie one behind the other pass
through one of 32 MiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist

from fastio.formats.layout import storage_offset_bytes
from fastio.memory.raw_memory import mark_overwritten
from fastio.models.in_place import copy_into, is_plain, pieces_of
from fastio.models.part_batches import BATCH_BYTES, Batch
from fastio.models.rank_group import RankGroup

SMALL = 1 << 20  # bytes; as many as a broadcast of 0.5 ms takes
_WIDEST = 16  # bytes of the largest number of torch


class Broadcast:
    """Sends tensors of a batch from rank ``source`` of a group: all memory that it takes is made here.

    The tensors have the same dtypes, shapes and strides on all ranks.
    """

    def __init__(self, ranks: RankGroup, source: int, batch: Batch, tensors: Mapping[str, torch.Tensor]) -> None:
        self.source = source
        self.batch = batch
        self.tensors = tensors
        self._ranks = ranks
        self._sends = source == ranks.rank
        self._works: list[Any] = []
        self._whole: list[torch.Tensor] = []  # memory that is sent at once
        self._packed: list[tuple[torch.Tensor, torch.Tensor]] = []  # what is copied, and its place in a buffer
        self._scattered: list[tuple[torch.Tensor, torch.Tensor]] = []  # a tensor, and a buffer for its pieces
        small: dict[torch.device, list[torch.Tensor]] = {}
        for tensor in tensors.values():
            if 0 < tensor.nbytes < SMALL:
                small.setdefault(tensor.device, []).append(_bytes_of(tensor) if is_plain(tensor) else tensor)
            elif is_plain(tensor):
                self._whole.append(_bytes_of(tensor))
            elif tensor.nbytes:
                self._scattered.append((tensor, _new_bytes(min(tensor.nbytes, BATCH_BYTES), tensor.device)))
        for device, some in small.items():
            *starts, nbytes = accumulate((-(-one.nbytes // _WIDEST) * _WIDEST for one in some), initial=0)
            buffer = _new_bytes(nbytes, device)
            self._whole.append(buffer)
            self._packed += [(one, _place(buffer, start, one)) for one, start in zip(some, starts, strict=True)]

    def start(self) -> None:
        """Begin; a collective call. The tensors must not be used before :meth:`wait` has returned."""
        if self._sends:
            for values, place in self._packed:
                copy_into(place, values)
        else:
            for tensor in self.tensors.values():
                mark_overwritten(tensor)
        self._works = [self._broadcast(memory, True) for memory in self._whole]
        for tensor, buffer in self._scattered:
            for piece in pieces_of(tensor, BATCH_BYTES // tensor.element_size()):
                place = _place(buffer, 0, piece)
                if self._sends:
                    copy_into(place, piece)
                self._broadcast(buffer[: piece.nbytes], False)
                if not self._sends:
                    copy_into(piece, place)

    def wait(self) -> None:
        """Return when the tensors have their values."""
        for work in self._works:
            work.wait()
        if not self._sends:
            for values, place in self._packed:
                copy_into(values, place)

    def _broadcast(self, memory: torch.Tensor, in_background: bool) -> Any:
        ranks = self._ranks
        return dist.broadcast(memory, ranks.global_rank(self.source), group=ranks.group, async_op=in_background)


def _new_bytes(nbytes: int, device: torch.device) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a plain tensor. Copies are of bytes, too: torch copies no dtype of less than one."""
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return memory.set_(tensor.untyped_storage(), storage_offset_bytes(tensor), (tensor.nbytes,))  # type: ignore[call-overload, no-any-return]


def _place(buffer: torch.Tensor, start: int, tensor: torch.Tensor) -> torch.Tensor:
    """Memory of a buffer for the elements of a tensor, one behind the other."""
    place = buffer[start : start + tensor.nbytes]
    if tensor.dtype == torch.uint8 and tensor.dim() == 1:
        return place
    return place.view(tensor.dtype).view(tensor.shape)
