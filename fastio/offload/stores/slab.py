"""One piece of memory in blocks: an arena, and the memory behind its offsets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from typing import Any, Protocol

from fastio.errors import FastIOError
from fastio.memory.staging_buffers import PAGE
from fastio.offload.stores.arena import Arena


class Memory(Protocol):
    """Page-aligned bytes at an address, of host memory or a device's."""

    address: int

    def close(self) -> None:
        """Free it. It must not be in use."""


class MappedMemory:
    """Memory that the disks of a store reach by themselves while it exists, through ``window`` if it is a device's."""

    def __init__(self, nbytes: int, store: Any, memory: Memory, window: Memory | None = None) -> None:
        self.address = memory.address
        self._seen = window or memory  # by the store
        self.shift = self._seen.address - self.address
        self._store = store
        self._parts = [memory] if window is None else [window, memory]
        try:
            store.map(self._seen.address, nbytes)
        except BaseException:
            self._free()
            raise

    def close(self) -> None:
        """Unmap and free it."""
        with contextlib.suppress(FastIOError):  # a closed store has unmapped it
            self._store.unmap(self._seen.address)
        self._free()

    def _free(self) -> None:
        for part in self._parts:
            part.close()


class Slab:
    """Blocks by address, on whole pages. ``allocate`` makes the memory, at its exact size, with the first block.

    Raises what ``allocate`` does, ArenaFullError if there is no room, and RuntimeError after ``close``.
    """

    def __init__(self, nbytes: int, allocate: Callable[[int], Memory]) -> None:
        self._arena = Arena(nbytes, PAGE)
        self._allocate = allocate
        self._memory: Memory | None = None
        self._closed = False

    def block(self, nbytes: int) -> int:
        """Return a new block."""
        if self._closed:
            raise RuntimeError("this store is closed: open another")
        offset = self._arena.resident(nbytes)
        if self._memory is None:
            try:
                self._memory = self._allocate(self._arena.nbytes)
            except BaseException:
                self._arena.free(offset)
                raise
        return self._memory.address + offset

    def free(self, address: int) -> None:
        """Free a block. It must not be used any more."""
        assert self._memory is not None, "a block has memory"
        self._arena.free(address - self._memory.address)

    @property
    def blocks(self) -> set[int]:
        """The addresses of all blocks."""
        return set() if self._memory is None else {self._memory.address + offset for offset in self._arena.offsets}

    def keep(self, blocks: Collection[int]) -> None:
        """Free all blocks but these: the others must not be used any more. See :meth:`Arena.keep`."""
        start = 0 if self._memory is None else self._memory.address
        self._arena.keep({block - start for block in blocks})

    def grow(self, nbytes: int) -> None:
        """Make room for a block of ``nbytes``. All blocks must be free."""
        arena = Arena(max(self.nbytes, -(-nbytes // PAGE) * PAGE), PAGE)
        if self._memory is not None:
            memory = self._allocate(arena.nbytes)  # before freeing the old memory: this may fail
            self._free_memory()
            self._memory = memory
        self._arena = arena

    def store_address(self, block: int) -> int:
        """Return the address by which a store reaches a block."""
        return block + getattr(self._memory, "shift", 0)

    @property
    def nbytes(self) -> int:
        """The size in bytes, allocated or not."""
        return self._arena.nbytes

    def close(self) -> None:
        """Free the memory, which must not be used any more. May be called twice."""
        self._closed = True
        self._free_memory()

    def _free_memory(self) -> None:
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.close()
