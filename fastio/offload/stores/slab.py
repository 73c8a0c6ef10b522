"""One piece of memory in blocks, and the copies between tensors and the blocks on their way to and from a store."""

from __future__ import annotations

import contextlib
import warnings
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from fastio.devices import Accelerator, Event
from fastio.memory.staging_buffers import PAGE, HostMemory
from fastio.nvme.mapped_memory import MappedMemory, Memory
from fastio.offload.stores.arena import Arena
from fastio.offload.stores.copies import DeviceCopies
from fastio.offload.stores.tiers import STORE_ERRORS


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
        """Return the address of a new block."""
        if self._closed:
            raise RuntimeError("this store is closed: open another")
        offset = self._arena.block(nbytes)
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
        return set() if self._memory is None else {self._memory.address + offset for offset in self._arena.offsets}

    @property
    def count(self) -> int:
        """The number of blocks."""
        return len(self._arena.offsets)

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


class Staging:
    """Blocks of a slab, which bounds how much moves at a time. It grows ahead of need to at most ``most`` bytes."""

    def __init__(self, copies: DeviceCopies, slab: Slab, most: int) -> None:
        self.copies = copies
        self.slab = slab
        self.most = most
        self._returning: deque[tuple[Event | None, int]] = deque()  # the ends of copies back, in order, and blocks

    def block(self, nbytes: int) -> int:
        """Return a block. Raises ArenaFullError if there is no room now."""
        while self.reap():
            pass
        return self.slab.block(nbytes)

    def free_after(self, event: Event | None, block: int) -> None:
        """Free a block when its copy back has ended, whose event is ``event``."""
        self._returning.append((event, block))

    def reap(self, wait: bool = False) -> bool:
        """Free the block of the oldest copy back, if that has ended or after a wait. Return whether one was freed."""
        if not self._returning:
            return False
        event, block = self._returning[0]
        with contextlib.suppress(*STORE_ERRORS):  # a device that failed says so to what uses the bytes
            if wait:
                self.copies.wait(event)
            elif not self.copies.is_done(event):
                return False
        self._returning.popleft()
        self.slab.free(block)
        return True

    def free_lost(self, blocks: Collection[int] = ()) -> None:
        """Free the blocks that neither the moves (``blocks``) nor copies back have: an interrupt lost them."""
        kept = {*blocks, *(block for _, block in self._returning)}
        if not self.slab.blocks <= kept:
            self.copies.synchronize()  # one may be under way
        self.slab.keep(kept)

    def grow(self, nbytes: int) -> None:
        """Make the slab larger, once all copies back have ended: there may be no other blocks.

        If the memory is refused, warn and keep the slab.
        """
        while self.reap(wait=True):
            pass
        try:
            self.slab.grow(nbytes)
        except STORE_ERRORS as error:
            warnings.warn(
                f"{nbytes} bytes of memory for transfers were refused ({error}): they go through "
                f"{self.slab.nbytes} bytes, and may wait for each other",
                RuntimeWarning,
                stacklevel=2,
            )

    def close(self) -> None:
        """Wait for all copies, and free the slab. May be called twice."""
        self.copies.synchronize()
        self._returning.clear()
        self.slab.close()


def pinned_memory(store: Any, accelerator: Accelerator, nbytes: int) -> HostMemory | MappedMemory:
    """Return memory for a slab, which the disks of the store use without a copy if its ``wants_map`` is true."""
    memory = HostMemory(nbytes, accelerator)
    return MappedMemory(nbytes, store, memory) if getattr(store, "wants_map", False) else memory
