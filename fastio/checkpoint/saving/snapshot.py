"""A copy of a state's storages in host memory, taken while training stands still, and written while it goes on.

The memory is kept for the next snapshot: its pages are there, so taking one costs a copy and nothing else. It is
pinned where storages are on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch

from fastio import _native
from fastio.checkpoint.saving.parallel_copy import Copy, blocks_of, by_first_look, copy_all
from fastio.memory.raw_memory import host_bytes, storage_bytes
from fastio.memory.staging_buffers import HostMemory, copy_errors
from fastio.runtime.native_errors import translate_native_errors

Storage = tuple[str, torch.UntypedStorage, int]
"""A record's name, its storage, and how many bytes of it belong to the record."""

# Large storages start on a page, so that a device can take them from where they are.
_PAGE, _LINE = 4096, 64
_LARGE = 16 << 10
# Of a storage on a GPU, what is compared before the whole of it is fetched: most that changed differ there.
_FIRST_LOOK = 1 << 20


class _Place(NamedTuple):
    """Where a storage starts, its size, and the kind of device that it comes from: only what a CPU has gets digests."""

    at: int
    nbytes: int
    kind: str


class Snapshot:
    """One snapshot at a time. Whoever reads it must have ended before the next is taken.

    One that is ``comparable`` keeps digests of what it holds.
    """

    def __init__(self, comparable: bool) -> None:
        self._comparable = comparable
        self._digests: _native.Digests | None = None
        self._memory: _native.Mapping | HostMemory | None = None
        self._places: dict[str, _Place] = {}
        self._held: list[Storage] = []  # the memory at these places
        self._is_whole = False

    def lay(self, storages: Sequence[Storage]) -> list[Storage]:
        """Memory for a snapshot of these storages, which is kept if they are of the same sizes as those before.

        TransferError where there is no memory.
        """
        places, total = _places(storages)
        base = self._room(total, pin=any(storage.device.type == "cuda" for _, storage, _ in storages))
        if places != self._places:  # there are none in new memory
            self._places, self._held = places, [_at(base + places[name].at, name, n) for name, _, n in storages]
            blocks = sum(blocks_of(nbytes) for _, _, nbytes in storages)
            self._digests = _native.Digests(blocks) if self._comparable else None
            self._is_whole = False
        return self._held

    def take(self, storages: Sequence[Storage], begin: Callable[[set[str]], object]) -> set[str]:
        """Copy all storages to the memory that was laid for them; gives those that are as they were in the last one.

        On a CPU their digests are compared, which reads them once; see :class:`fastio._native.Digests`. ``begin`` is
        told of storages that changed, most often of all that did, when those are there and most is to be looked at yet.
        """
        compare, self._is_whole = self._comparable and self._is_whole, False
        devices = {storage.device for _, storage, _ in storages if storage.device.type == "cuda"}
        _synchronize(devices)  # what computes a tensor may be on any stream
        copies = []
        changed = set()
        block = 0
        for number, (_, storage, nbytes) in enumerate(storages):
            target = self._held[number][1]
            if nbytes == 0:
                continue
            if storage.device.type == "cpu":
                copies.append(Copy(number, target.data_ptr(), storage.data_ptr(), nbytes, block, compare))
                block += blocks_of(nbytes)
            elif _fetched(storage_bytes(target), storage_bytes(storage)[:nbytes], compare):
                changed.add(number)
        _synchronize(devices)
        if not compare or self._digests is None:
            copy_all(copies, self._digests)
            self._is_whole = True
            return set()
        near, far = by_first_look(copies, self._digests)
        changed |= copy_all(near, self._digests)
        begin({storages[number][0] for number in changed})
        changed |= copy_all(far, self._digests)
        self._is_whole = True
        return {name for number, (name, _, _) in enumerate(storages) if number not in changed}

    def close(self) -> None:
        """Give the memory back."""
        memory, self._memory = self._memory, None
        self._places, self._held, self._digests, self._is_whole = {}, [], None, False
        if isinstance(memory, HostMemory):
            memory.close()

    def room(self, nbytes: int, pin: bool) -> int:
        """The address of this memory, enough for ``nbytes``, to be used for something else: what it held is lost."""
        self._is_whole = False
        return self._room(nbytes, pin)

    def _room(self, nbytes: int, pin: bool) -> int:
        """The address of memory for ``nbytes``; it is what it was before, if that suffices."""
        memory = self._memory
        if memory is None or memory.nbytes < nbytes or (pin and not isinstance(memory, HostMemory)):
            del memory
            self.close()  # first, or there would be two
            with translate_native_errors("the snapshot of a checkpoint"):
                memory = HostMemory(max(nbytes, _PAGE), pin=True) if pin else _native.Mapping(nbytes)
            self._memory = memory
        return memory.address


def _at(address: int, name: str, nbytes: int) -> Storage:
    if nbytes == 0:
        return name, torch.UntypedStorage(0, device="cpu"), 0
    return name, host_bytes(address, nbytes).untyped_storage(), nbytes


def _places(storages: Sequence[Storage]) -> tuple[dict[str, _Place], int]:
    """Where each storage goes, and the room for all."""
    places = {}
    at = 0
    for name, storage, nbytes in storages:
        alignment = _PAGE if nbytes >= _LARGE else _LINE
        at = -(-at // alignment) * alignment
        places[name] = _Place(at, nbytes, storage.device.type)
        at += nbytes
    return places, at


def _synchronize(devices: Iterable[torch.device]) -> None:
    with copy_errors():
        for device in devices:
            torch.cuda.synchronize(device)


def _fetched(target: torch.Tensor, source: torch.Tensor, compare: bool) -> bool:
    """Start to copy from a device; with ``compare``, not what is there already. Gives whether it was copied."""
    with copy_errors():
        if compare:
            look = min(_FIRST_LOOK, target.numel())
            if torch.equal(target[:look].to(source.device), source[:look]) and torch.equal(
                target[look:].to(source.device), source[look:]
            ):
                return False
        target.copy_(source, non_blocking=source.is_cuda)
    return True
