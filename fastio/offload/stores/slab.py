"""One piece of host memory in blocks: the two-ended arena, and the memory that its offsets mean."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol

from fastio.errors import FastIOError
from fastio.memory.staging_buffers import PAGE, HostMemory
from fastio.offload.stores.arena import Arena

_broken_off: list[HostMemory] = []


class Mapper(Protocol):
    """Who must know memory before a device reaches it; see :meth:`fastio.offload.BlockStore.map`."""

    def map(self, address: int, nbytes: int) -> None:
        """Before the first use."""

    def unmap(self, address: int) -> None:
        """After the last."""


class Slab:
    """Blocks by address, on whole pages. The memory is made with the first block, at its exact size.

    ``pin``: registered with CUDA. ``mapper`` is told of the memory while there is any. Raises RefusedError where the
    system or the driver does not give the memory, what the mapper raises, ArenaFullError where there is no room, and
    RuntimeError once it is closed.
    """

    def __init__(self, nbytes: int, pin: bool, mapper: Mapper | None = None) -> None:
        self._arena = Arena(nbytes, PAGE)
        self._pin = pin
        self._mapper = mapper
        self._memory: HostMemory | None = None
        self._closed = False

    def resident(self, nbytes: int) -> int:
        """A block for what stays a while."""
        return self._take(self._arena.resident, nbytes)

    def ephemeral(self, nbytes: int) -> int:
        """A block for what passes through."""
        return self._take(self._arena.ephemeral, nbytes)

    def has_room(self, nbytes: int) -> bool:
        """Whether ``resident`` would find a block of that size."""
        try:
            self._arena.free(self._arena.resident(nbytes))
        except MemoryError:
            return False
        return True

    def free(self, address: int) -> None:
        """Give a block back. Nobody may use it any more."""
        assert self._memory is not None, "a block has memory"
        self._arena.free(address - self._memory.address)

    def grow(self, nbytes: int) -> None:
        """Have room for a block of ``nbytes``. Only when all blocks are free that ever will be."""
        arena = Arena(max(self.nbytes, -(-nbytes // PAGE) * PAGE), PAGE)
        if self._memory is not None:
            memory = self._make(arena.nbytes)  # before the old one goes: it may fail
            self._give_back()
            self._memory = memory
        self._arena = arena

    @property
    def nbytes(self) -> int:
        """Its size, whether the memory is made or not."""
        return self._arena.nbytes

    @property
    def used(self) -> int:
        """Bytes in blocks."""
        return self._arena.used

    def close(self) -> None:
        """Unpin the memory and give it back. Nobody may use it any more. Twice is fine."""
        self._closed = True
        self._give_back()

    def _make(self, nbytes: int) -> HostMemory:
        memory = HostMemory(nbytes, self._pin)
        if self._mapper is not None:
            try:
                self._mapper.map(memory.address, nbytes)
            except BaseException:
                memory.close()
                raise
        return memory

    def _give_back(self) -> None:
        memory, self._memory = self._memory, None
        if memory is not None and self._arena.used == 0:
            if self._mapper is not None:
                with contextlib.suppress(FastIOError):  # a store that is closed has let go of it
                    self._mapper.unmap(memory.address)
            memory.close()
        elif memory is not None:  # an interrupt broke off a transfer that a device may still be at: it stays for ever
            _broken_off.append(memory)

    def _take(self, take: Callable[[int], int], nbytes: int) -> int:
        if self._closed:
            raise RuntimeError("this store is closed")
        offset = take(nbytes)
        if self._memory is None:
            try:
                self._memory = self._make(self._arena.nbytes)
            except BaseException:
                self._arena.free(offset)
                raise
        return self._memory.address + offset
