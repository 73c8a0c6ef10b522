"""One piece of memory in blocks: the two-ended arena, and the memory behind its offsets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol

from fastio.devices import Accelerator
from fastio.errors import FastIOError
from fastio.memory.staging_buffers import PAGE, HostMemory
from fastio.offload.stores.arena import Arena

_leaked: list[Memory] = []


class Memory(Protocol):
    """What a slab's blocks lie in."""

    address: int

    def close(self) -> None:
        """Free it. It must not be in use."""


class Mapper(Protocol):
    """Maps memory for a device before it uses it; see :meth:`fastio.offload.BlockStore.map`."""

    def map(self, address: int, nbytes: int) -> None:
        """Called before the first use."""

    def unmap(self, address: int) -> None:
        """Called after the last use."""


class Slab:
    """Blocks by address, on whole pages. The memory is allocated with the first block, at its exact size.

    ``pin_for``: the accelerator that the memory is pinned for. ``mapper`` maps it while it exists. Raises RefusedError
    if the system or the driver refuses the memory, the mapper's errors, ArenaFullError if there is no room, and
    RuntimeError after ``close``.
    """

    def __init__(self, nbytes: int, pin_for: Accelerator | None, mapper: Mapper | None = None) -> None:
        self._arena = Arena(nbytes, PAGE)
        self._pin_for = pin_for
        self._mapper = mapper
        self._memory: Memory | None = None
        self._closed = False

    def resident(self, nbytes: int) -> int:
        """Return a block for long-lived data."""
        return self._take(self._arena.resident, nbytes)

    def ephemeral(self, nbytes: int) -> int:
        """Return a block for data in transit."""
        return self._take(self._arena.ephemeral, nbytes)

    def free(self, address: int) -> None:
        """Free a block. It must not be used any more."""
        assert self._memory is not None, "a block has memory"
        self._arena.free(address - self._memory.address)

    def grow(self, nbytes: int) -> None:
        """Make room for a block of ``nbytes``. All blocks must be free, except leaked ones."""
        arena = Arena(max(self.nbytes, -(-nbytes // PAGE) * PAGE), PAGE)
        if self._memory is not None:
            memory = self._allocate(arena.nbytes)  # before freeing the old memory: this may fail
            self._free_memory()
            self._memory = memory
        self._arena = arena

    def store_address(self, block: int) -> int:
        """Return the address by which a store reaches a block."""
        return block

    @property
    def nbytes(self) -> int:
        """The size in bytes, allocated or not."""
        return self._arena.nbytes

    @property
    def used(self) -> int:
        """Bytes in blocks."""
        return self._arena.used

    def close(self, unused: bool = False) -> None:
        """Unpin and free the memory, unless blocks are left and not ``unused`` by devices. May be called twice."""
        self._closed = True
        if unused:
            self._arena = Arena(self.nbytes, PAGE)
        self._free_memory()

    def _allocate(self, nbytes: int) -> Memory:
        # A forked process can read blobs of CPU tensors from it, unless a device has it.
        memory = HostMemory(nbytes, self._pin_for, inherited=self._pin_for is None and self._mapper is None)
        if self._mapper is not None:
            try:
                self._mapper.map(memory.address, nbytes)
            except BaseException:
                memory.close()
                raise
        return memory

    def _free_memory(self) -> None:
        memory, self._memory = self._memory, None
        if memory is not None and self._arena.used == 0:
            if self._mapper is not None:
                with contextlib.suppress(FastIOError):  # a closed store has unmapped it
                    self._mapper.unmap(memory.address)
            memory.close()
        elif memory is not None:  # after an interrupted transfer a device may still use it: never freed
            _leaked.append(memory)

    def _take(self, take: Callable[[int], int], nbytes: int) -> int:
        if self._closed:
            raise RuntimeError("this store is closed: open another")
        offset = take(nbytes)
        if self._memory is None:
            try:
                self._memory = self._allocate(self._arena.nbytes)
            except BaseException:
                self._arena.free(offset)
                raise
        return self._memory.address + offset
