"""A tier in one piece of host memory, which is pinned if the tensors come from an accelerator.

On an accelerator nothing here waits, except in a pass that measures transfers: the device keeps the order. A copy out
follows the operator that saved the bytes. The stream of that operator waits for the copy before the memory is freed, so
what reuses it comes later. A copy back follows the work that used its memory before, and what uses the bytes waits for
it. Blocks of host memory are reused in the same way: the copies out that follow do so after all copies before.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict

from fastio import devices
from fastio.offload.autograd.buffer import IN_HUGE_PAGES, Buffer
from fastio.offload.autograd.saved_tensor import SavedTensor, State
from fastio.offload.report import Counts
from fastio.offload.stores.arena import ArenaFullError
from fastio.offload.stores.host_copies import CpuCopies, StreamCopies
from fastio.offload.stores.loaded import Loaded
from fastio.offload.stores.slab import Slab
from fastio.offload.stores.store_errors import without_frames
from fastio.offload.stores.tiers import STORE_ERRORS, Tier


class HostTier(Tier):
    """Moves saved tensors to at most ``nbytes`` of host memory and back; see the module's docstring.

    The memory is allocated with the first tensor.
    """

    def __init__(
        self, name: str, nbytes: int, accelerator: devices.Accelerator | None, counts: Counts, loaded: Loaded
    ) -> None:
        super().__init__(name, counts, loaded)
        self._slab = Slab(nbytes, accelerator)
        self._copies = CpuCopies() if accelerator is None else StreamCopies(accelerator)
        # Free blocks by size: a training uses the same ones in each step. Copies may still use the freed ones.
        self._freed: defaultdict[int, list[int]] = defaultdict(list)
        self._spare: defaultdict[int, list[int]] = defaultdict(list)

    def move_out(self, saved: SavedTensor, waits: bool) -> bool:
        """Begin to copy a tensor out, and wait for that if ``waits``. Return False if there is no room for it.

        Never raises an error of the copy.
        """
        began = time.perf_counter()
        nbytes = saved.stored_nbytes
        try:
            spare = self._spare[nbytes]
            block = spare.pop() if spare else self._block(nbytes)
            if block is None:
                return False
            saved.tier = self
            saved.block = block
            saved.copied = self._copies.out(saved, block)
            if waits:
                self._copies.wait(saved.copied)
        except STORE_ERRORS as error:
            self._free(saved)
            self._refuse(saved, error)
            return True
        except BaseException:  # an interrupt may come after the copy was issued
            self._copies.synchronize()
            self._free(saved)
            raise
        self._record("write", saved, began, began, time.perf_counter())
        self._loaded.add(saved)
        return True

    def cancel(self, saved: SavedTensor) -> None:
        """Nothing: a copy is issued at once."""

    def fetch(self, saved: SavedTensor) -> None:
        """Begin to copy a tensor back.

        Raises MemoryError, or torch's error, if there is no memory for it, and RefusedError if the device refuses the
        copy; nothing is changed then.
        """
        assert saved.block is not None, "it was moved out"
        if saved.view is not None and saved.encoded is None and (saved.accelerator or saved.nbytes < IN_HUGE_PAGES):
            buffer = Buffer.of_view(saved.view, saved.device)
        elif saved.encoded is not None:
            buffer = Buffer.for_payload(saved.stored_nbytes, saved.device)
        else:
            buffer = Buffer.like_source(saved.span, saved.source_nbytes, saved.device, paged=False)
        saved.buffer = buffer
        saved.fetched_s = time.perf_counter()
        try:
            saved.arrived = self._copies.back(saved, buffer, saved.block)
            saved.state = State.INFLIGHT
            self._loaded.add(saved)
        except BaseException:  # an interrupt may come after the copy was issued
            self._copies.synchronize()
            self._loaded.discard(saved)
            saved.buffer, saved.state = None, State.DISK
            raise

    def bring(self, saved: SavedTensor) -> None:
        """Let what is queued next on the current stream find the bytes. Raises ActivationLostError."""
        began = time.perf_counter()
        try:
            if saved.state is State.INFLIGHT and saved.encoded is None:
                saved.ready, saved.state = saved.arrived, State.RESIDENT
            else:
                self._bring(saved)
        except STORE_ERRORS as first:
            self._counts.retried += 1
            saved.state = State.DISK
            try:
                self._bring(saved)
            except STORE_ERRORS as second:
                self._loaded.discard(saved)
                raise self._lost(saved, without_frames(first), second) from second
        self._record("read", saved, saved.fetched_s, began, time.perf_counter())

    def unload(self, saved: SavedTensor) -> None:
        """Drop the bytes of a tensor in ``loaded`` on the device; host memory has them too."""
        if saved.stream is not None and saved.copied is not None and (saved.live or saved.payload) is not None:
            saved.stream.wait_event(saved.copied)
        saved.live = saved.payload = saved.buffer = None
        saved.state = State.DISK
        self._loaded.discard(saved)

    def drop(self, saved: SavedTensor) -> None:
        """Free the bytes of a tensor that the graph released."""
        if saved.state is State.INFLIGHT and saved.arrived is not None and saved.home is not None:
            saved.home.wait_event(saved.arrived)  # nothing that uses the bytes did
        if saved.state is not State.DISK:
            self.unload(saved)
        self._free(saved)

    def close(self) -> None:
        """Wait for the copies, and free the memory."""
        self._copies.synchronize()
        self._slab.close(unused=True)

    def _bring(self, saved: SavedTensor) -> None:
        if saved.state is State.DISK:
            self.fetch(saved)
        saved.ready = saved.arrived
        if saved.encoded is not None:
            self._decode(saved)
        saved.state = State.RESIDENT

    def _block(self, nbytes: int) -> int | None:
        """Return the address of a block, where there is no spare one; None if there is no room."""
        if self._freed:
            self._copies.follow_all()
            for size, blocks in self._freed.items():
                while blocks:
                    self._spare[size].append(blocks.pop())
            self._freed.clear()
            if spare := self._spare[nbytes]:
                return spare.pop()
        with contextlib.suppress(ArenaFullError):
            return self._slab.resident(nbytes)
        for blocks in self._spare.values():
            while blocks:
                self._slab.free(blocks.pop())
        with contextlib.suppress(ArenaFullError):
            return self._slab.resident(nbytes)
        return None

    def _free(self, saved: SavedTensor) -> None:
        block, saved.block = saved.block, None
        if block is not None:
            self._freed[saved.stored_nbytes].append(block)
