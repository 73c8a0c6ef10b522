"""A tier in one piece of host memory, which is pinned if the tensors come from an accelerator.

vDNN's pinned host memory, with a stream of copies beside compute (section III-B).

On an accelerator nothing here waits, except in a pass that measures transfers: the device keeps the order. A copy out
follows the operator that saved the bytes. The stream of that operator waits for the copy before the memory is freed, so
what reuses it comes later. A copy back follows the work that used its memory before, and what uses the bytes waits for
it. Blocks of host memory are reused in the same way: the copies out that follow do so after all copies before.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from fastio import devices
from fastio.memory.staging_buffers import HostMemory
from fastio.offload.autograd.buffer import IN_HUGE_PAGES, Buffer
from fastio.offload.autograd.saved_tensor import SavedTensor, State
from fastio.offload.autograd.trace import HOST
from fastio.offload.report import Counts
from fastio.offload.stores.arena import ArenaFullError
from fastio.offload.stores.copies import CpuCopies, DeviceCopies
from fastio.offload.stores.slab import Slab
from fastio.offload.stores.store_errors import without_frames
from fastio.offload.stores.tiers import STORE_ERRORS, Loaded, Tier

if TYPE_CHECKING:
    from fastio.offload.autograd.forward_pass import ForwardPass

_TRUSTED = 4  # copies: the fastest of the last ones tells the bandwidth, as one may be held up for reasons of its own


class HostTier(Tier):
    """Moves saved tensors to at most ``nbytes`` of host memory and back; see the module's docstring.

    The memory is allocated with the first tensor. ``times_copies``: on an accelerator, measure the copies, to choose
    between host memory and a disk whose bytes go another way.
    """

    name = HOST

    def __init__(
        self, nbytes: int, accelerator: devices.Accelerator | None, counts: Counts, loaded: Loaded, times_copies: bool
    ) -> None:
        super().__init__(counts, loaded)
        self._times_copies = times_copies
        self._slab = Slab(nbytes, partial(HostMemory, pin_for=accelerator, inherited=accelerator is None))
        self._copies: dict[torch.device, CpuCopies] = {}
        # Free blocks by size, oldest first: a training uses the same ones in each step. Copies may still use those that
        # were freed in this epoch: until the copies out follow all others, which begins the next one.
        self._free: defaultdict[int, deque[tuple[int, int]]] = defaultdict(deque)  # address and epoch
        self._epoch = 0
        # On an accelerator: the pass that made the latest copy whose time was taken, and the copies with its time. One
        # of each pass, of the largest tensors: that of a small one is no bandwidth.
        self._timed: tuple[ForwardPass, CpuCopies] | None = None
        self._least_timed = 0  # bytes
        self._bandwidths: deque[float] = deque(maxlen=_TRUSTED)

    def begin_pass(self, is_idle: bool) -> None:
        """Begin a pass: tell the one before of the copy whose time was taken, if that has ended.

        ``is_idle``: no saved tensor is alive. Blocks that an interrupt lost are free again then.
        """
        if is_idle and sum(map(len, self._free.values())) != self._slab.count:
            self._synchronize()
            self._slab.keep({block for blocks in self._free.values() for block, _ in blocks})
        if self._timed is None:
            self._least_timed = 0
            return
        step, copies = self._timed
        with contextlib.suppress(*STORE_ERRORS):  # a device that failed says so to what uses the bytes
            bandwidth = None if copies.timed is None else copies.timed.bandwidth()
            if bandwidth is not None:
                self._bandwidths.append(bandwidth)
                step.record_bandwidth("host write", max(self._bandwidths))
                self._timed = None

    def move_out(self, several: Sequence[SavedTensor], waits: bool) -> int:
        """Begin to copy tensors out, between which nothing was computed; wait for that if ``waits``.

        Return how many have left, or stay because the copy was refused: all but the last ones, for which there is no
        room. Never raises an error of the copy.
        """
        first, taken = several[0], 0
        began = time.perf_counter()
        try:
            copies = self._copies.get(first.device) or self._copies_of(first)
            moves: list[devices.Copy] = []
            for saved in several:
                if not self._reserve(saved):
                    break
                saved.sent = address = saved.address  # first: after an interrupt, what has a tier knows it
                saved.tier = self
                assert saved.block is not None, "it was reserved"
                moves.append((saved.block, address, saved.stored_nbytes))
            taken = len(moves)
            if not taken:
                return 0
            nbytes = sum([nbytes for _, _, nbytes in moves])
            timed = self._times_copies and self._timed is None and nbytes >= self._least_timed
            copied = copies.out(moves, first.stream, first.computed, timed)
            if timed:  # one that was refused has no time
                self._timed, self._least_timed = (first.step, copies), nbytes
            if waits and copied is not None:
                copies.wait(copied.set())
        except STORE_ERRORS as error:
            for saved in several:
                self._release(saved)
            self._refuse(first, error)
            return len(several)
        except BaseException:  # an interrupt may come after the copies were issued
            self._synchronize()
            for saved in several:
                self._release(saved)
            raise
        now = time.perf_counter()
        left = several if taken == len(several) else several[:taken]
        for saved in left:
            saved.copied = copied
        self._loaded.add(*left)
        self._record("write", left, began, now, now - began if waits or copied is None else 0.0)
        return taken

    def cancel(self, saved: SavedTensor) -> None:
        """Nothing: a copy is issued at once."""

    def fetch(self, *several: SavedTensor) -> None:
        """Begin to copy tensors of one device back. On the CPU they are there then.

        Raises MemoryError, or torch's error, if there is no memory for them, and RefusedError if the device refuses a
        copy; nothing is changed then.
        """
        first, last_out = several[0], None
        copies, accelerator = self._copies[first.device], first.accelerator
        began = time.perf_counter()
        try:
            home = None if accelerator is None else accelerator.current_stream(first.device)
            moves: list[devices.Copy] = []
            for saved in several:
                saved.buffer = buffer = _buffer_for(saved)
                assert saved.block is not None, "it was moved out"
                moves.append((saved.block, buffer.storage.data_ptr() + buffer.start, saved.stored_nbytes))
                copied = saved.copied
                if copied is not None and (last_out is None or copied.number > last_out.number):
                    last_out = copied
                saved.home = home
            arrived = copies.back_in_batch(moves, last_out, home)
            for saved in several:
                saved.arrived, saved.state = arrived, State.INFLIGHT
            self._loaded.add(*several)
        except BaseException:  # an interrupt may come after a copy was issued
            self._synchronize()
            for saved in several:
                self._loaded.discard(saved)
                saved.buffer, saved.state = None, State.DISK
            raise
        now = time.perf_counter()
        self._record("read", several, began, now, now - began if arrived is None else 0.0)

    def bring(self, saved: SavedTensor) -> None:
        """Let what is queued next on the current stream find the bytes. Raises ActivationLostError."""
        if saved.state is State.INFLIGHT and saved.encoded is None:
            saved.ready, saved.state = saved.arrived, State.RESIDENT
            return
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

    def unload(self, saved: SavedTensor) -> None:
        """Drop the bytes of a tensor in ``loaded`` on the device; host memory has them too.

        It stays where it is if other code freed its memory since, as the copy may have read what came there.
        """
        if saved.live is not None or saved.payload is not None:
            if not saved.is_as_sent:
                self._counts.moved += 1
                self._loaded.discard(saved)
                self._release(saved)
                saved.tier = None
                return
            if saved.stream is not None and saved.copied is not None:
                saved.copied.precede(saved.stream)
            saved.live = saved.payload = None
        saved.buffer = None
        saved.state = State.DISK
        self._loaded.discard(saved)

    def abandon(self, saved: SavedTensor) -> None:
        """Drop the bytes of a tensor that is being read."""
        saved.free_behind_arrival()
        self.unload(saved)

    def drop(self, saved: SavedTensor) -> None:
        """Free the bytes of a tensor that the graph released."""
        if saved.state is State.INFLIGHT:
            self.abandon(saved)
        elif saved.state is not State.DISK:
            self.unload(saved)
        saved.release_bytes()
        self._release(saved)

    def close(self) -> None:
        """Wait for the copies, and free the memory."""
        self._synchronize()
        self._slab.close()

    def _bring(self, saved: SavedTensor) -> None:
        if saved.state is State.DISK:
            self.fetch(saved)
        saved.ready = saved.arrived
        if saved.encoded is not None:
            self._decode(saved)
        saved.state = State.RESIDENT

    def _synchronize(self) -> None:
        for copies in self._copies.values():
            copies.synchronize()

    def _copies_of(self, saved: SavedTensor) -> CpuCopies:
        accelerator, device = saved.accelerator, saved.device
        copies = CpuCopies() if accelerator is None else DeviceCopies(accelerator, device)
        self._copies[device] = copies
        self._follow_all()
        return copies

    def _follow_all(self) -> None:
        """Let the copies out to come follow all copies so far: host memory that these use may be used again."""
        streams = [stream for copies in self._copies.values() for stream in copies.streams]
        for copies in self._copies.values():
            copies.follow_streams(streams)
        self._epoch += 1

    def _reserve(self, saved: SavedTensor) -> bool:
        """Give a saved tensor a block; return False if there is no room."""
        nbytes = saved.stored_nbytes
        blocks = self._free.get(nbytes)
        if blocks:
            if blocks[0][1] == self._epoch:
                self._follow_all()
            saved.block = blocks[0][0]  # no interrupt comes between this and the next line
            blocks.popleft()
            return True
        with contextlib.suppress(ArenaFullError):
            saved.block = self._slab.block(nbytes)
            return True
        if not self._free:
            return False
        self._follow_all()
        while self._free:
            _, blocks = self._free.popitem()
            while blocks:
                self._slab.free(blocks.popleft()[0])
        return self._reserve(saved)

    def _release(self, saved: SavedTensor) -> None:
        block, saved.block = saved.block, None
        if block is not None:
            self._free[saved.stored_nbytes].append((block, self._epoch))


def _buffer_for(saved: SavedTensor) -> Buffer:
    """Allocate memory to read a saved tensor back to."""
    if saved.encoded is not None:
        return Buffer.for_payload(saved.stored_nbytes, saved.device)
    if saved.view is not None and (saved.accelerator or saved.nbytes < IN_HUGE_PAGES):
        return Buffer.of_view(saved.view, saved.device)
    return Buffer.like_source(saved.span, saved.source_nbytes, saved.device, paged=False)
