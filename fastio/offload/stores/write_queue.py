"""The write queue of a store: writes behind compute within a byte budget, and after reads."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

import torch

from fastio import devices
from fastio.offload.autograd.saved_tensor import SavedTensor, State
from fastio.offload.autograd.views import LINE, PAGE
from fastio.offload.report import Counts
from fastio.offload.stores.loaded import Loaded
from fastio.offload.stores.store_errors import without_frames
from fastio.offload.stores.tiers import STORE_ERRORS, Store, Tier


class WriteQueue(Tier):
    """Moves saved tensors to a store.

    A tensor waits in ``_queued`` (live, not issued, can be cancelled), then in ``_issued``. If the graph releases a
    tensor during a command, it stays in ``_freed_in_flight`` until the command ends, because the device still uses its
    memory.
    """

    def __init__(self, name: str, store: Store, counts: Counts, loaded: Loaded, window: int) -> None:
        super().__init__(name, counts, loaded)
        self.store = store
        self.window = window  # bytes of live tensors that may wait for their write
        self._whole_pages: bool = getattr(store, "whole_pages", False)
        self._queued: deque[SavedTensor] = deque()
        self._issued: deque[SavedTensor] = deque()
        self._queued_bytes = 0
        self._issued_bytes = 0
        self._reading: dict[int, SavedTensor] = {}
        self._freed_in_flight: list[SavedTensor] = []
        self._started: dict[int, float] = {}
        self._errors: dict[int, Exception] = {}
        self._streams: dict[torch.device, devices.Stream] = {}

    def begin_pass(self, window: int) -> None:
        """Begin a forward pass. The pass before may have been interrupted anywhere, so waiting bytes are recounted."""
        self.window = window
        self._queued_bytes = sum(saved.stored_nbytes for saved in self._queued)
        self._issued_bytes = sum(saved.stored_nbytes for saved in self._issued)

    def move_out(self, saved: SavedTensor, limit: int) -> None:
        """Begin to move a tensor out. Blocks while more than ``limit`` bytes wait for their write.

        Never raises an error of the store.
        """
        saved.state = State.PENDING
        saved.computed = None if saved.stream is None else saved.stream.record_event()
        self._queued.append(saved)
        self._queued_bytes += saved.stored_nbytes
        self.pump()
        # After an interrupt, bytes of a lost tensor count until the next pass begins.
        while self.waiting_bytes > limit and (self._issued or self._queued):
            if self._issued:
                self._finish_write(self._issued[0])
            else:  # reads come first, but the window is full
                self._issue(self._queued.popleft())
            self.pump()

    def pump(self, needed: Collection[int] | None = None) -> None:
        """Reap finished commands and issue queued writes. Writes wait while a read is in flight.

        Written tensors stay in memory. In backward, only those with the indices ``needed``, which it is about to use;
        they are not written any more.
        """
        over = self._finished()
        while self._issued and self._issued[0].index in over:
            self._finish_write(self._issued[0], needed)
        for saved in [saved for saved in self._freed_in_flight if saved.index in over]:
            self._forget(saved)  # first: after an interrupt it is repeated, which is harmless
            self._freed_in_flight.remove(saved)
        if not self._queued or not over.issuperset(self._reading):
            return
        depth = max(1, self.window // 2)
        # At least two: if they go through host memory, one is copied there while the other is written.
        while self._queued and (self._issued_bytes < depth or len(self._issued) < 2):
            if needed is not None and self._queued[0].index in needed:
                break
            self._issue(self._queued.popleft())
        # A store that fails or is closed raises again for each tensor that is needed.
        with contextlib.suppress(*STORE_ERRORS):
            self.store.update()

    def cancel(self, saved: SavedTensor) -> None:
        """Drop a write that has not been issued, because backward needs the tensor."""
        if saved.state is State.PENDING and saved in self._queued:
            self._queued.remove(saved)
            self._queued_bytes -= saved.stored_nbytes
            saved.state = State.RESIDENT
            self._counts.cancelled += 1

    def waiting(self) -> Iterator[SavedTensor]:
        """The saved tensors whose write has not ended."""
        return itertools.chain(self._queued, self._issued)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of live tensors whose write has not ended."""
        return self._queued_bytes + self._issued_bytes

    def _issue(self, saved: SavedTensor) -> None:
        self._queued_bytes -= saved.stored_nbytes
        if saved.step.refused:
            saved.state = State.RESIDENT
            return
        began = self._started[saved.index] = time.perf_counter()
        saved.sent = saved.address
        saved.lead = self._lead(saved.sent)
        try:
            with self._behind(saved):
                self.store.write(saved.index, saved.sent - saved.lead, saved.lead + saved.stored_nbytes)
        except STORE_ERRORS as error:
            self._fail_write(saved, error)
        else:
            self._counts.stalled_write_s += self._stalled(saved, began)
            self._issued.append(saved)
            self._issued_bytes += saved.stored_nbytes

    def _behind(self, saved: SavedTensor) -> contextlib.AbstractContextManager[Any]:
        """A context in which GPU work waits until the bytes are computed, and for no kernel that was queued later."""
        accelerator = saved.accelerator
        if accelerator is None:
            return contextlib.nullcontext()
        if saved.device not in self._streams:
            self._streams[saved.device] = accelerator.new_stream(saved.device)
        stream = self._streams[saved.device]
        stream.wait_event(saved.computed)
        return accelerator.under(stream)

    def _lead(self, address: int) -> int:
        """Return how many bytes before the tensor to transfer with it, so that the device can use its memory directly.

        They are whatever is there (torch's tensors begin 64 bytes into a page), on the same page.
        """
        lead = address % PAGE
        return lead if self._whole_pages and lead % LINE == 0 else 0

    def _finish_write(self, saved: SavedTensor, needed: Collection[int] | None = None) -> None:
        began = time.perf_counter()
        self._issued.remove(saved)
        self._issued_bytes -= saved.stored_nbytes
        try:
            self._wait(saved)
        except STORE_ERRORS as error:
            self._fail_write(saved, error)
            return
        if saved.address != saved.sent:  # torch moved them meanwhile (``share_memory_``): the written bytes are unknown
            saved.state = State.RESIDENT
            self._forget(saved, keep=True)
            self._counts.moved += 1
            return
        self._record("write", saved, self._started.pop(saved.index, began), began, time.perf_counter())
        self._loaded.add(saved)
        saved.state = State.RESIDENT
        if needed is not None and saved.index not in needed:
            self.unload(saved)

    def unload(self, saved: SavedTensor) -> None:
        """Drop the bytes in memory of a tensor in ``loaded``, which is not being read; the store has them too."""
        saved.release_bytes()
        saved.state = State.DISK
        self._loaded.discard(saved)

    def _fail_write(self, saved: SavedTensor, error: Exception) -> None:
        self._forget(saved, keep=True)
        self._refuse(saved, error)

    def _stalled(self, saved: SavedTensor, began: float) -> float:
        """Return the seconds that compute waited, and record them in the pass."""
        seconds = time.perf_counter() - began
        saved.step.record_stall(seconds)
        return seconds

    def _finished(self) -> set[int]:
        """Return the indices whose command has ended, with or without an error: by one question, if the store can."""
        pending = [*self._reading, *(saved.index for saved in (*self._issued, *self._freed_in_flight))]
        if not pending:
            return set()
        with contextlib.suppress(*STORE_ERRORS):  # it raises again for each tensor
            ask = getattr(self.store, "finished", None)
            if ask is not None:
                ended: list[int] = ask(pending)
                return self._errors.keys() | set(ended)
            self.store.update()
        return {index for index in pending if self._is_over(index)}

    def _is_over(self, index: int) -> bool:
        if index in self._errors:
            return True
        try:
            return self.store.is_done(index)
        except STORE_ERRORS as error:
            self._errors[index] = without_frames(error)  # kept: a store may raise it only once
            return True
        except IndexError:  # interrupted before it was written, or after it was freed
            return True

    def _wait(self, saved: SavedTensor) -> None:
        """Wait for the tensor's command; raises its error."""
        if saved.index in self._errors:
            raise self._errors.pop(saved.index)
        self.store.wait(saved.index)

    def _forget(self, saved: SavedTensor, keep: bool = False) -> None:
        # Errors do not matter: no one needs the bytes, and a write that never began has no index.
        with contextlib.suppress(*STORE_ERRORS, IndexError):
            self.store.free(saved.index)
        self._started.pop(saved.index, None)
        self._errors.pop(saved.index, None)
        if not keep:
            saved.release_bytes()
