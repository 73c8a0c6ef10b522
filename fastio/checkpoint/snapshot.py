"""A copy of a state's storages in host memory, taken while training stands still, and written while it goes on.

The memory is kept for the next snapshot: its pages are there, so taking one costs a copy and nothing else. It is
pinned where storages are on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from fastio import _native
from fastio.addresses import host_bytes, storage_bytes
from fastio.buffers import HostMemory, copy_errors
from fastio.checkpoint.copying import Copy, copy_all
from fastio.native_errors import named

Storage = tuple[str, torch.UntypedStorage, int]
"""A record's name, its storage, and how many bytes of it belong to the record."""

# Large storages start on a page, so that a device can take them from where they are.
_PAGE, _LINE = 4096, 64
_LARGE = 16 << 10
# Of a storage on a GPU, what is compared before the whole of it is fetched: most that changed differ there.
_FIRST_LOOK = 1 << 20


class Taken(NamedTuple):
    """Storages as they were, now in host memory; ``unchanged`` names those that the last snapshot had too."""

    storages: list[Storage]
    unchanged: set[str]


class Snapshot:
    """One snapshot at a time. Whoever reads it must have ended before the next is taken."""

    def __init__(self) -> None:
        self._memory: _native.Mapping | HostMemory | None = None
        self._places: dict[str, tuple[int, int]] = {}  # name: where it starts, and its size
        self._held: list[Storage] = []  # the memory at these places

    def take(self, storages: Sequence[Storage], compare: bool) -> Taken:
        """Copy all storages; with ``compare``, find those that are as they were in the last snapshot, which was whole.

        They are compared byte by byte, which costs what copying them costs. TransferError where there is no memory.
        """
        places, total = _places(storages)
        devices = {storage.device for _, storage, _ in storages if storage.device.type == "cuda"}
        base = self.room(total, pin=bool(devices))
        comparable = compare and places == self._places  # there are none in new memory
        if places != self._places:
            self._places, self._held = places, [_at(base + places[name][0], name, n) for name, _, n in storages]
        _synchronize(devices)  # what computes a tensor may be on any stream
        copies = []
        changed = set()
        for number, (_, storage, nbytes) in enumerate(storages):
            target = self._held[number][1]
            if nbytes == 0:
                continue
            if storage.device.type == "cpu":
                copies.append(Copy(number, target.data_ptr(), storage.data_ptr(), nbytes))
            elif _fetched(storage_bytes(target), storage_bytes(storage)[:nbytes], comparable):
                changed.add(number)
        changed |= copy_all(copies, comparable)
        _synchronize(devices)
        names = [name for name, _, _ in storages]
        unchanged = {name for number, name in enumerate(names) if number not in changed} if comparable else set()
        return Taken(self._held, unchanged)

    def close(self) -> None:
        """Give the memory back."""
        memory, self._memory = self._memory, None
        self._places, self._held = {}, []
        if isinstance(memory, HostMemory):
            memory.close()

    def room(self, nbytes: int, pin: bool) -> int:
        """The address of memory for ``nbytes``; it is what it was before, if that suffices."""
        memory = self._memory
        if memory is None or memory.nbytes < nbytes or (pin and not isinstance(memory, HostMemory)):
            del memory
            self.close()  # first, or there would be two
            with named("the snapshot of a checkpoint"):
                memory = HostMemory(max(nbytes, _PAGE), pin=True) if pin else _native.Mapping(nbytes)
            self._memory = memory
        return memory.address


def _at(address: int, name: str, nbytes: int) -> Storage:
    if nbytes == 0:
        return name, torch.UntypedStorage(0, device="cpu"), 0
    return name, host_bytes(address, nbytes).untyped_storage(), nbytes


def _places(storages: Sequence[Storage]) -> tuple[dict[str, tuple[int, int]], int]:
    """Where each storage goes, with its size, and the room for all."""
    places = {}
    at = 0
    for name, _, nbytes in storages:
        alignment = _PAGE if nbytes >= _LARGE else _LINE
        at = -(-at // alignment) * alignment
        places[name] = (at, nbytes)
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
