"""A tier in one piece of host memory, which is pinned if the tensors come from an accelerator.

On an accelerator nothing here waits, except in a pass that measures transfers: the device keeps the order. A copy out
follows the operator that saved the bytes. The stream of that operator waits for the copy before the memory is freed, so
what reuses it comes later. A copy back follows the work that used its memory before, and what uses the bytes waits for
it. A block of host memory is reused when its last copy was seen to have ended.
"""

from __future__ import annotations

import time
from collections import deque

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
        self._freed: deque[tuple[int, int, devices.Event | None]] = deque()  # blocks, sizes, and the last copy of each
        self._spare: dict[int, list[int]] = {}  # free blocks by size: a training uses the same ones in each step

    def begin_pass(self) -> None:
        """Begin a forward pass: take back the memory whose copies have ended."""
        self._reap(wait=False)

    def move_out(self, saved: SavedTensor, waits: bool) -> bool:
        """Begin to copy a tensor out, and wait for that if ``waits``. Return False if there is no room for it.

        Never raises an error of the copy.
        """
        began = time.perf_counter()
        try:
            block = self._block(saved.stored_nbytes)
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
        if saved.encoded is not None:
            saved.buffer = Buffer.for_payload(saved.stored_nbytes, saved.device)
        elif saved.view is not None and (saved.accelerator is not None or saved.nbytes < IN_HUGE_PAGES):
            saved.buffer = Buffer.of_view(saved.view, saved.device)
        else:
            saved.buffer = Buffer.like_source(saved.span, saved.source_nbytes, saved.device, paged=False)
        saved.fetched_s = time.perf_counter()
        try:
            saved.arrived = self._copies.back(saved, saved.buffer, saved.block)
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
        if saved.held and saved.copied is not None and saved.stream is not None:
            saved.stream.wait_event(saved.copied)
        saved.release_bytes()
        saved.state = State.DISK
        self._loaded.discard(saved)

    def drop(self, saved: SavedTensor) -> None:
        """Free the bytes of a tensor that the graph released."""
        if saved.state is State.INFLIGHT and saved.arrived is not None and saved.home is not None:
            saved.home.wait_event(saved.arrived)  # nothing that uses the bytes did
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
        self._decode(saved)
        saved.state = State.RESIDENT

    def _block(self, nbytes: int) -> int | None:
        """Return the address of a new block; None if there is no room."""
        spare = self._spare.get(nbytes)
        if spare:
            return spare.pop()
        try:
            return self._slab.resident(nbytes)
        except ArenaFullError:
            pass
        for waits in (False, True):
            self._reap(waits)
            for blocks in self._spare.values():
                while blocks:
                    self._slab.free(blocks.pop())
            try:
                return self._slab.resident(nbytes)
            except ArenaFullError:
                if not self._freed:
                    break
        return None

    def _free(self, saved: SavedTensor) -> None:
        block, saved.block = saved.block, None
        if block is not None:
            last = saved.copied if saved.arrived is None else saved.arrived
            if last is None:
                self._spare.setdefault(saved.stored_nbytes, []).append(block)
            else:
                self._freed.append((block, saved.stored_nbytes, last))

    def _reap(self, wait: bool) -> None:
        """Free the blocks whose copies have ended, from the oldest one on; wait for all if ``wait``."""
        while self._freed and self._copies.is_over(self._freed[0][2], wait):
            block, nbytes, _ = self._freed.popleft()
            self._spare.setdefault(nbytes, []).append(block)
