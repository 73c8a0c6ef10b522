"""The slab that a device's tensors pass through on their way to and from a store, and the copies to and from it."""

from __future__ import annotations

import contextlib
import warnings
from collections import deque
from collections.abc import Collection
from typing import Any

from fastio.devices import Accelerator, Event
from fastio.memory.staging_buffers import HostMemory
from fastio.offload.stores.copies import DeviceCopies
from fastio.offload.stores.slab import MappedMemory, Slab
from fastio.offload.stores.tiers import STORE_ERRORS


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
