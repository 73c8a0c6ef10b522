"""Where the bytes of a step go: into live tensors, where they fit, else into memory of their own."""

from __future__ import annotations

import bisect
from collections.abc import Sequence, Set
from typing import Any

import torch

from fastio.addresses import storage_bytes
from fastio.checkpoint.live import TRANSPARENT, leaves
from fastio.landing import LoadBuffers, Region
from fastio.transport import Extent, Span

Key = tuple[int, str]
"""The number of a file of the step, and the name of a record in it."""


class Places:
    """The :class:`fastio.checkpoint.live.Targets` of one step, over ``landings``, memory for each file's ``regions``.

    That memory costs nothing before it is filled.
    """

    def __init__(self, landings: Sequence[LoadBuffers], regions: Sequence[Sequence[Region]]) -> None:
        self._landings = landings
        self._regions = {(number, one.name): one for number, some in enumerate(regions) for one in some}
        self._own: dict[Key, torch.UntypedStorage] = {}
        self._keys: dict[int, Key] = {}  # by the address of a storage
        self._live: dict[Key, torch.Tensor] = {}
        self._taken: list[tuple[int, int]] = []  # memory of live tensors: (begin, end), sorted
        self._needed: set[Key] = set()

    def storage(self, key: Key) -> torch.UntypedStorage:
        """Memory for a record, not filled yet."""
        storage = self._own.get(key)
        if storage is None:
            storage = self._own[key] = self._landings[key[0]].storage(self._regions[key])
            self._keys[storage.data_ptr()] = key
        return storage

    def offer(self, saved: torch.Tensor, live: torch.Tensor) -> bool:
        """See :class:`fastio.checkpoint.live.Targets`."""
        key = self._key_of(saved)
        if key is None or not _alike(saved, live) or saved.numel() * saved.element_size() != self._regions[key].nbytes:
            return False
        begin = live.data_ptr()
        if key in self._live:
            return self._live[key].data_ptr() == begin
        end = begin + self._regions[key].nbytes
        at = bisect.bisect_left(self._taken, (begin, end))
        if (at > 0 and self._taken[at - 1][1] > begin) or (at < len(self._taken) and self._taken[at][0] < end):
            return False  # live tensors that share memory: which one comes last is for their owner to say
        self._taken.insert(at, (begin, end))
        self._live[key] = live
        return True

    def need(self, saved: Any) -> None:
        """See :class:`fastio.checkpoint.live.Targets`."""
        for leaf in leaves(saved):
            if isinstance(leaf, torch.Tensor):
                key = self._key_of(leaf)
                if key is not None:
                    self._needed.add(key)
                    continue
                if leaf.layout == torch.strided and not leaf.is_quantized and leaf.numel() == 0:
                    continue
            if not isinstance(leaf, TRANSPARENT) or isinstance(leaf, torch.Tensor):
                self._needed.update(self._own)  # it may hold any of them
                return

    def need_all(self, keys: Set[Key]) -> None:
        """Have these records filled in memory of their own, whatever tensors they are of."""
        self._needed.update(keys & self._regions.keys())

    def request(self, number: int) -> tuple[list[Extent], Span | None]:
        """What to read of a file. Nobody needs what is left out."""
        extents = []
        untouched = True
        for extent in self._landings[number].extents:
            live = self._live.get((number, extent.name))
            if live is not None:
                untouched = False
                owner = live.untyped_storage()
                extents.append(extent._replace(address=live.data_ptr(), device=live.device.type, owner=owner))
            elif (number, extent.name) in self._needed:
                extents.append(extent)
            else:
                untouched = False
        return extents, self._landings[number].span if untouched else None

    def share(self) -> None:
        """What went into a live tensor but is needed beside it too is copied. When all is read."""
        for key in self._needed & self._live.keys():
            live = self._live[key]
            begin = live.data_ptr() - live.untyped_storage().data_ptr()
            source = storage_bytes(live.untyped_storage())[begin : begin + self._regions[key].nbytes]
            storage_bytes(self._own[key])[: source.numel()].copy_(source)

    def _key_of(self, saved: torch.Tensor) -> Key | None:
        if saved.layout != torch.strided or saved.is_quantized:
            return None
        return self._keys.get(saved.untyped_storage().data_ptr())


def _alike(saved: torch.Tensor, live: torch.Tensor) -> bool:
    """Whether the bytes of one are the bytes of the other."""
    return (
        type(live) in (torch.Tensor, torch.nn.Parameter)
        and live.device.type in ("cpu", "cuda")
        and live.layout == torch.strided
        and not live.is_quantized
        and (saved.dtype, saved.shape, saved.stride()) == (live.dtype, live.shape, live.stride())
        and (saved.is_conj(), saved.is_neg()) == (live.is_conj(), live.is_neg())
        and saved.storage_offset() == 0
        and _is_dense(live)
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements lie side by side, in any order of the dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
