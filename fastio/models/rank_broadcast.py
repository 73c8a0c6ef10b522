"""Broadcasts tensors that one rank has to the same tensors of the others, straight from memory to memory.

Small tensors are sent together, by way of a buffer. Large ones whose elements do not lie one behind the other pass
through one of 32 MiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from fastio.formats.layout import storage_offset_bytes
from fastio.memory.raw_memory import mark_overwritten
from fastio.models.in_place import copy_into, is_plain, pieces_of
from fastio.models.part_batches import BATCH_BYTES
from fastio.models.rank_group import RankGroup

SMALL = 1 << 20  # bytes; as many as a broadcast of 0.5 ms takes
_WIDEST = 16  # bytes of the largest number of torch


class _Packed(NamedTuple):
    """A small tensor, its memory as bytes if it is plain, and its place in a buffer."""

    tensor: torch.Tensor
    values: torch.Tensor
    place: torch.Tensor


class Broadcast:
    """Sends tensors from rank ``source`` of a group: all memory that it takes is made here.

    The tensors have the same dtypes, shapes and strides on all ranks.
    """

    def __init__(self, ranks: RankGroup, source: int, tensors: Sequence[torch.Tensor]) -> None:
        self._ranks = ranks
        self._source = source
        self._works: list[Any] = []
        self._straight: list[torch.Tensor] = []
        self._scattered: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._buffers: list[torch.Tensor] = []
        self._packed: list[_Packed] = []
        small: dict[torch.device, list[torch.Tensor]] = {}
        for tensor in tensors:
            if 0 < tensor.nbytes < SMALL:
                small.setdefault(tensor.device, []).append(tensor)
            elif is_plain(tensor):
                self._straight.append(tensor)
            elif tensor.nbytes:
                self._scattered.append((tensor, _new_bytes(min(tensor.nbytes, BATCH_BYTES), tensor.device)))
        for device, some in small.items():
            lines = (-(-tensor.nbytes // _WIDEST) * _WIDEST for tensor in some)
            *starts, nbytes = accumulate(lines, initial=0)
            buffer = _new_bytes(nbytes, device)
            self._buffers.append(buffer)
            self._packed += [_packed(buffer, start, tensor) for start, tensor in zip(starts, some, strict=True)]

    @property
    def _sends(self) -> bool:
        return self._source == self._ranks.rank

    def start(self) -> None:
        """Begin; a collective call. The tensors must not be used before :meth:`wait` has returned."""
        for tensor in self._straight:
            if not self._sends:
                mark_overwritten(tensor)
            self._works.append(self._broadcast(_bytes_of(tensor), True))
        if self._sends:
            for _, values, place in self._packed:
                copy_into(place, values)
        for buffer in self._buffers:
            self._works.append(self._broadcast(buffer, True))
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
            for tensor, values, place in self._packed:
                copy_into(values, place)
                mark_overwritten(tensor)

    def _broadcast(self, memory: torch.Tensor, in_background: bool) -> Any:
        ranks = self._ranks
        return dist.broadcast(memory, ranks.global_rank(self._source), group=ranks.group, async_op=in_background)


def _new_bytes(nbytes: int, device: torch.device) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device=device)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a plain tensor as uint8."""
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return memory.set_(tensor.untyped_storage(), storage_offset_bytes(tensor), (tensor.nbytes,))  # type: ignore[call-overload, no-any-return]


def _place(buffer: torch.Tensor, start: int, tensor: torch.Tensor) -> torch.Tensor:
    """Memory of a buffer for the elements of a tensor, one behind the other."""
    place = torch.empty(0, dtype=tensor.dtype, device=buffer.device)
    return place.set_(buffer.untyped_storage(), start // tensor.element_size(), tensor.shape)  # type: ignore[call-overload, no-any-return]


def _packed(buffer: torch.Tensor, start: int, tensor: torch.Tensor) -> _Packed:
    """Plain tensors are copied as bytes: torch copies no dtype of less than one."""
    if is_plain(tensor):
        return _Packed(tensor, _bytes_of(tensor), buffer[start : start + tensor.nbytes])
    return _Packed(tensor, tensor, _place(buffer, start, tensor))
