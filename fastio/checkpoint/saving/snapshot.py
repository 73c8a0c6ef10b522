"""Copies a state's storages to host memory while training pauses, to be written while it continues.

The memory is kept for the next snapshot: its pages are mapped already, so a snapshot costs only the copy. It is pinned
if storages are on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

from fastio import devices
from fastio._native import Digests, Mapping
from fastio.checkpoint.saving.parallel_copy import Copy, CopyBatch, blocks_of, copy_all, split_by_first_block
from fastio.checkpoint.saving.shared_staging import SharedStaging
from fastio.devices import Accelerator, copy_errors
from fastio.memory.raw_memory import host_bytes, storage_bytes, synchronize
from fastio.memory.staging_buffers import HostMemory
from fastio.runtime.native_errors import translate_native_errors

Storage = tuple[str, torch.UntypedStorage, int]
"""A record's name, its storage, and how many bytes of it belong to the record."""

# Large storages start on a page, so that a device can read them without another copy.
_PAGE, _LINE = 4096, 64
_LARGE = 16 << 10
# How many bytes of a GPU's storage are compared before the rest: most that changed differ there. Of the rest, so many
# are on the GPU a second time at once.
_FIRST_COMPARED, _COMPARED = 1 << 20, 32 << 20


class _Slot(NamedTuple):
    """Where a storage starts, its size, and the type of its device: only storages on the CPU have digests."""

    start: int
    nbytes: int
    kind: str


class Snapshot:
    """Holds one snapshot at a time. All reads of it must end before the next is taken.

    A ``comparable`` one keeps digests of its contents. The memory of a ``shared`` one can be sent to another process.
    """

    def __init__(self, comparable: bool, shared: bool = False) -> None:
        self._comparable = comparable
        self._shared = shared
        self._digests: Digests | None = None
        self._memory: Mapping | HostMemory | SharedStaging | None = None
        self._slots: dict[str, _Slot] = {}
        self._copies: list[Storage] = []  # storages over the memory of the slots
        self._is_complete = False
        self._shape: list[tuple[str, int, torch.device]] | None = None  # what the slots are for
        self._batch: CopyBatch | None = None  # of the last snapshot, from these addresses
        self._sources: list[int] = []
        self.crcs: dict[str, int] = {}
        """CRC-32s of storages that the last :meth:`take` copied, by name: of those on the CPU, as far as it knows."""
        self.block_crcs: dict[str, bytes] = {}
        """Those of the blocks of large ones (:mod:`fastio.formats.block_checksums`), if it is not comparable."""

    def allocate(self, storages: Sequence[Storage]) -> list[Storage]:
        """Return storages for a snapshot of these; the same ones as before if names, sizes and devices are equal.

        TransferError if there is no memory.
        """
        shape = [(name, nbytes, storage.device) for name, storage, nbytes in storages]
        if shape == self._shape:
            return self._copies
        slots, total = _slots(storages)
        base = self._reserve(total, pin_for({storage.device.type for _, storage, _ in storages}))
        self._shape, self._batch = shape, None
        if slots != self._slots:  # always in new memory, where self._slots is empty
            self._slots = slots
            self._copies = [storage_at(base + slots[name].start, name, nbytes) for name, _, nbytes in storages]
            blocks = sum(blocks_of(nbytes) for _, _, nbytes in storages)
            self._digests = Digests(blocks) if self._comparable else None
            self._is_complete = False
        return self._copies

    def take(self, storages: Sequence[Storage], begin: Callable[[set[str]], object]) -> set[str]:
        """Copy all storages to their allocated memory; return the names of those that did not change since the last.

        On a CPU their digests are compared, which reads them once; see :class:`fastio._native.Digests`. ``begin`` is
        called with the names of storages that changed, usually of all of them, once these are copied; most of the rest
        is still to be compared then.
        """
        self.crcs, self.block_crcs = {}, {}  # the writer of the snapshot before may still have its own
        compare, self._is_complete = self._comparable and self._is_complete, False
        used = {storage.device for _, storage, _ in storages}
        _synchronize(used)  # a tensor may be computed on any stream
        changed = set()
        for number, (_, storage, nbytes) in enumerate(storages):
            if nbytes and storage.device.type != "cpu":
                target = self._copies[number][1]
                if _copy_from_device(storage_bytes(target), storage_bytes(storage)[:nbytes], compare):
                    changed.add(number)
        _synchronize(used)
        if self._digests is None:
            self._copy_again(storages)
        elif not compare:
            self._copy(self._made(storages, compare), storages, self._digests)
        else:
            first, rest = split_by_first_block(self._made(storages, compare), self._digests)
            changed |= self._copy(first, storages, self._digests)
            begin({storages[number][0] for number in changed})
            changed |= self._copy(rest, storages, self._digests)
        self._is_complete = True
        return {name for number, (name, _, _) in enumerate(storages) if compare and number not in changed}

    def _made(self, storages: Sequence[Storage], compare: bool) -> list[Copy]:
        """The copies of all storages in host memory."""
        copies, block = [], 0
        for number, (_, storage, nbytes) in enumerate(storages):
            if nbytes and storage.device.type == "cpu":
                target = self._copies[number][1].data_ptr()
                copies.append(Copy(number, target, storage.data_ptr(), nbytes, block, compare))
                block += blocks_of(nbytes)
        return copies

    def _copy_again(self, storages: Sequence[Storage]) -> None:
        """Copy all storages in host memory, as the last time if they are where they were."""
        sources = [storage.data_ptr() for _, storage, _ in storages]
        if self._batch is None or sources != self._sources:
            self._batch, self._sources = CopyBatch(self._made(storages, compare=False)), sources
        self._batch.run()
        self.crcs = {storages[number][0]: crc for number, crc in self._batch.crcs.items()}
        self.block_crcs = {storages[number][0]: crcs for number, crcs in self._batch.block_crcs.items()}

    def _copy(self, copies: list[Copy], storages: Sequence[Storage], digests: Digests) -> set[int]:
        """Make copies, and note their CRC-32s; return the numbers of those made."""
        made = copy_all(copies, digests)
        self.crcs |= {storages[number][0]: crc for number, crc in made.items() if crc is not None}
        return set(made)

    @property
    def shared_memory(self) -> SharedStaging:
        """The memory of a shared snapshot that was allocated."""
        assert isinstance(self._memory, SharedStaging)
        return self._memory

    def close(self) -> None:
        """Free the memory."""
        memory, self._memory = self._memory, None
        self._slots, self._copies, self._digests, self._is_complete = {}, [], None, False
        self._shape = self._batch = None
        if memory is not None and not isinstance(memory, Mapping):
            memory.close()

    def reserve(self, nbytes: int, pin_for: Accelerator | None) -> int:
        """Return the address of at least ``nbytes`` of this memory, for another use: the snapshot is lost."""
        self._is_complete = False
        return self._reserve(nbytes, pin_for)

    def _reserve(self, nbytes: int, pin_for: Accelerator | None) -> int:
        """Return the address of memory for ``nbytes``: the present memory if it is large enough, else new memory."""
        memory = self._memory
        is_pinned = memory is not None and not isinstance(memory, Mapping) and memory.pinned
        if memory is None or memory.nbytes < nbytes or (pin_for is not None and not is_pinned):
            del memory
            self.close()  # before the allocation, so that both are never held at once
            with translate_native_errors("the snapshot of a checkpoint"):
                self._memory = memory = self._allocated(nbytes, pin_for)
        return memory.address

    def _allocated(self, nbytes: int, pin_for: Accelerator | None) -> Mapping | HostMemory | SharedStaging:
        if self._shared:
            return SharedStaging(max(nbytes, _PAGE), pin_for)
        return Mapping(nbytes) if pin_for is None else HostMemory(max(nbytes, _PAGE), pin_for)


def storage_at(address: int, name: str, nbytes: int) -> Storage:
    """Return a storage over ``nbytes`` of host memory, which the caller keeps alive."""
    if nbytes == 0:
        return name, torch.UntypedStorage(0, device="cpu"), 0
    return name, host_bytes(address, nbytes).untyped_storage(), nbytes


def _slots(storages: Sequence[Storage]) -> tuple[dict[str, _Slot], int]:
    """Return the slot of each storage, and the bytes of all."""
    slots = {}
    end = 0
    for name, storage, nbytes in storages:
        alignment = _PAGE if nbytes >= _LARGE else _LINE
        start = -(-end // alignment) * alignment
        slots[name] = _Slot(start, nbytes, storage.device.type)
        end = start + nbytes
    return slots, end


def pin_for(kinds: Iterable[str]) -> Accelerator | None:
    """The accelerator that memory for storages on these types of device is pinned for."""
    return next(filter(None, map(devices.find, sorted(kinds))), None)


def _synchronize(used: Iterable[torch.device]) -> None:
    with copy_errors():
        synchronize(used)


def _copy_from_device(target: torch.Tensor, source: torch.Tensor, compare: bool) -> bool:
    """Start a copy from a device, with ``compare`` only if the bytes differ; return whether it was started."""
    with copy_errors():
        if compare and all(
            torch.equal(before.to(source.device), now)
            for before, now in zip(_compared(target), _compared(source), strict=True)
        ):
            return False
        target.copy_(source, non_blocking=True)
    return True


def _compared(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the pieces of a tensor that are compared at a time."""
    yield tensor[:_FIRST_COMPARED]
    for start in range(_FIRST_COMPARED, tensor.numel(), _COMPARED):
        yield tensor[start : start + _COMPARED]
