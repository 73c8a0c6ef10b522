"""A tier: writes behind compute within a byte budget, reads before writes, and handles store errors."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections import deque
from collections.abc import Collection
from typing import Any, Literal, Protocol

import torch

from fastio import devices
from fastio.errors import FastIOError
from fastio.offload.autograd.saved_tensor import LINE, PAGE, Buffer, SavedTensor, State
from fastio.offload.codecs.saved_tensor_encoding import unpack
from fastio.offload.report import Counts, Event, Traffic
from fastio.offload.stores.loaded import Loaded
from fastio.offload.stores.store_errors import without_frames

_STORE_ERRORS = (FastIOError, OSError)  # what a store raises; anything else is a bug


class Store(Protocol):
    """What a tier needs of a store. ``write`` and ``read`` return at once; memory must live until ``is_done``.

    A store with a true attribute ``whole_pages`` prefers memory that begins on a page of 4096 bytes, and allows other
    data on that page to change during a transfer.
    """

    def write(self, index: int, address: int, nbytes: int) -> Any:
        """Begin to write the bytes under this index."""

    def read(self, index: int, address: int, nbytes: int) -> Any:
        """Begin to read the bytes of this index."""

    def update(self) -> int:
        """Submit and reap commands; return how many are still pending."""

    def is_done(self, index: int) -> bool:
        """Return whether the index's last command ended. Raises its error."""

    def wait(self, index: int) -> Any:
        """Wait for the index's last command. Raises its error."""

    def free(self, index: int) -> Any:
        """Free the bytes of this index."""

    def close(self) -> Any:
        """Release all resources."""


class ActivationLostError(FastIOError, RuntimeError):
    """A saved tensor's bytes could not be read back. Raised before the gradients of its node change."""


class Tier:
    """Moves saved tensors to a store and back. Not thread-safe: the manager holds its lock around every call.

    Only a tier changes a saved tensor's ``state``. A tensor waits in ``_queued`` (live, not issued, can be cancelled),
    then in ``_issued``. Once written it is in ``loaded``, as is one that is read back: both stay in memory until
    ``unload``. If the graph releases a tensor during a command, it stays in ``_freed_in_flight`` until the command
    ends, because the device still uses its memory.
    """

    def __init__(self, name: str, store: Store, counts: Counts, loaded: Loaded, window: int) -> None:
        self.name = name
        self.store = store
        self.window = window  # bytes of live tensors that may wait for their write
        self._counts = counts
        self._loaded = loaded
        self._traffic = counts.traffic.setdefault(name, Traffic())
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
        if saved.step.refused:
            return
        saved.tier = self
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
        self._poll_store()
        while self._issued and self._is_over(self._issued[0]):
            self._finish_write(self._issued[0], needed)
        for saved in [saved for saved in self._freed_in_flight if self._is_over(saved)]:
            self._forget(saved)  # first: after an interrupt it is repeated, which is harmless
            self._freed_in_flight.remove(saved)
        if not self._queued or any(
            saved.state is State.INFLIGHT and not self._is_over(saved) for saved in self._reading.values()
        ):
            return
        depth = max(1, self.window // 2)
        # At least two: if they go through host memory, one is copied there while the other is written.
        while self._queued and (self._issued_bytes < depth or len(self._issued) < 2):
            if needed is not None and self._queued[0].index in needed:
                break
            self._issue(self._queued.popleft())
        self._poll_store()

    def cancel(self, saved: SavedTensor) -> None:
        """Drop a write that has not been issued, because backward needs the tensor."""
        if saved.state is State.PENDING and saved in self._queued:
            self._queued.remove(saved)
            self._queued_bytes -= saved.stored_nbytes
            saved.state = State.RESIDENT
            self._counts.cancelled += 1

    def fetch(self, saved: SavedTensor) -> None:
        """Begin to read a tensor back; it is submitted by the next ``pump``, or when it is waited for.

        Raises MemoryError, or torch's error, with nothing changed if there is no memory for it.
        """
        if saved.encoded is None:
            saved.buffer = Buffer.like_source(saved.span, saved.source_nbytes, saved.device, saved.lead)
        else:
            saved.buffer = Buffer.for_payload(saved.stored_nbytes, saved.device, saved.lead)
        saved.state = State.INFLIGHT
        self._loaded.add(saved)
        self._reading[saved.index] = saved
        self._started[saved.index] = time.perf_counter()
        try:
            self._read(saved)
        except _STORE_ERRORS as error:
            self._errors[saved.index] = without_frames(error)  # retried when the tensor is needed
        # Some stores read synchronously.
        self._counts.stalled_read_s += self._stalled(saved, self._started[saved.index])

    def finish(self, saved: SavedTensor) -> None:
        """Wait until a tensor is back. Raises ActivationLostError after a second failure."""
        began = time.perf_counter()
        try:
            self._wait(saved)
            settled = time.perf_counter()
            self._decode(saved)
        except _STORE_ERRORS as first:
            self._counts.retried += 1
            try:
                self._read(saved)
                self.store.wait(saved.index)
                settled = time.perf_counter()
                self._decode(saved)
            except _STORE_ERRORS as second:
                saved.state = State.FAILED
                self._reading.pop(saved.index, None)
                raise ActivationLostError(
                    f"saved tensor {saved.ordinal} of forward pass {saved.step.number} ({saved.nbytes} bytes from byte "
                    f"{saved.span.start} of its storage, number {saved.index} at the store) could not be read back: "
                    f"{second}; the first try said: {first}. The gradients of this step are incomplete: "
                    f"discard them (optimizer.zero_grad) and repair the store before a new Offload is made"
                ) from second
        saved.state = State.RESIDENT
        self._reading.pop(saved.index, None)
        self._traffic.read_bytes += saved.stored_nbytes
        self._traffic.reads += 1
        self._counts.stalled_read_s += self._stalled(saved, began, settled)
        self._record_event("read", saved, began, settled)

    def unload(self, saved: SavedTensor) -> None:
        """Drop the bytes in memory of a tensor in ``loaded``, which is not being read; the store has them too."""
        saved.release_bytes()
        saved.state = State.DISK
        self._loaded.discard(saved)

    def drop(self, saved: SavedTensor) -> None:
        """Free the bytes of a tensor that the graph released, now or when its command ends."""
        self.cancel(saved)
        if saved in self._loaded and saved.state is State.RESIDENT:
            self.unload(saved)
        if saved.state is State.RESIDENT and saved.held:  # never written
            saved.release_bytes()
            return
        if saved in self._issued:
            self._issued.remove(saved)
            self._issued_bytes -= saved.stored_nbytes
        self._loaded.discard(saved)
        self._reading.pop(saved.index, None)
        if self._is_over(saved):
            self._forget(saved)
        else:
            self._freed_in_flight.append(saved)

    def drain(self) -> None:
        """Wait until nothing is pending. Errors of reads are raised when the tensor is needed."""
        while self._queued or self._issued:
            while self._issued:
                self._finish_write(self._issued[0])
            if self._queued:
                self._issue(self._queued.popleft())
        for saved in [*self._freed_in_flight, *self._reading.values()]:
            if not self._is_over(saved):
                with contextlib.suppress(*_STORE_ERRORS):
                    self.store.wait(saved.index)
        self.pump()

    @property
    def queued_bytes(self) -> int:
        """Bytes of live tensors whose write has not been issued."""
        return self._queued_bytes

    @property
    def waiting_bytes(self) -> int:
        """Bytes of live tensors whose write has not ended."""
        return self._queued_bytes + self._issued_bytes

    def _issue(self, saved: SavedTensor) -> None:
        self._queued_bytes -= saved.stored_nbytes
        if saved.step.refused:
            saved.state = State.RESIDENT
            return
        self._started[saved.index] = time.perf_counter()
        saved.sent = saved.address
        saved.lead = self._lead(saved.sent)
        try:
            with self._behind(saved):
                self.store.write(saved.index, saved.sent - saved.lead, saved.lead + saved.stored_nbytes)
        except _STORE_ERRORS as error:
            self._fail_write(saved, error)
        else:
            self._counts.stalled_write_s += self._stalled(saved, self._started[saved.index])
            self._issued.append(saved)
            self._issued_bytes += saved.stored_nbytes

    def _behind(self, saved: SavedTensor) -> contextlib.AbstractContextManager[Any]:
        """A context in which GPU work waits until the bytes are computed, and for no kernel that was queued later."""
        accelerator = devices.find(saved.device)
        if accelerator is None:
            return contextlib.nullcontext()
        if saved.device not in self._streams:
            self._streams[saved.device] = accelerator.new_stream(saved.device)
        stream = self._streams[saved.device]
        stream.wait_event(saved.computed)
        return accelerator.under(stream)

    def _read(self, saved: SavedTensor) -> None:
        assert saved.buffer is not None, "fetch gave it one"
        self.store.read(saved.index, saved.buffer.address - saved.lead, saved.lead + saved.stored_nbytes)

    def _lead(self, address: int) -> int:
        """Return how many bytes before the tensor to transfer with it, so that the device can use its memory directly.

        They are whatever is there (torch's tensors begin 64 bytes into a page), on the same page.
        """
        lead = address % PAGE
        return lead if self._whole_pages and lead % LINE == 0 else 0

    def _poll_store(self) -> None:
        # A store that fails or is closed raises again for each tensor that is needed.
        with contextlib.suppress(*_STORE_ERRORS):
            self.store.update()

    def _is_over(self, saved: SavedTensor) -> bool:
        if saved.index in self._errors:
            return True
        try:
            return self.store.is_done(saved.index)
        except _STORE_ERRORS as error:
            self._errors[saved.index] = without_frames(error)  # kept: a store may raise it only once
            return True
        except IndexError:  # interrupted before it was written, or after it was freed
            return True

    def _wait(self, saved: SavedTensor) -> None:
        """Wait for the tensor's command; raises its error."""
        if saved.index in self._errors:
            raise self._errors.pop(saved.index)
        self.store.wait(saved.index)

    def _decode(self, saved: SavedTensor) -> None:
        if saved.encoded is not None:
            assert saved.buffer is not None, "fetch gave it one"
            saved.buffer = unpack(saved, saved.buffer.bytes(saved.stored_nbytes))

    def _finish_write(self, saved: SavedTensor, needed: Collection[int] | None = None) -> None:
        began = time.perf_counter()
        self._issued.remove(saved)
        self._issued_bytes -= saved.stored_nbytes
        try:
            self._wait(saved)
        except _STORE_ERRORS as error:
            self._fail_write(saved, error)
            return
        if saved.address != saved.sent:  # torch moved them meanwhile (``share_memory_``): the written bytes are unknown
            saved.state = State.RESIDENT
            self._forget(saved, keep=True)
            self._counts.moved += 1
            return
        now = time.perf_counter()
        self._loaded.add(saved)
        saved.state = State.RESIDENT
        if needed is not None and saved.index not in needed:
            self.unload(saved)
        self._traffic.written_bytes += saved.stored_nbytes
        self._traffic.writes += 1
        self._counts.stalled_write_s += self._stalled(saved, began, now)
        self._record_event("write", saved, began, now)

    def _stalled(self, saved: SavedTensor, began: float, ended: float | None = None) -> float:
        """Return the seconds that compute waited, and record them in the pass."""
        seconds = (time.perf_counter() if ended is None else ended) - began
        saved.step.record_stall(seconds)
        return seconds

    def _record_event(self, op: Literal["write", "read"], saved: SavedTensor, waited_from: float, now: float) -> None:
        event = Event(
            op,
            saved.step.number,
            saved.ordinal,
            saved.stored_nbytes,
            self._started.pop(saved.index, waited_from),
            now,
            self.name,
        )
        self._counts.events.append(event)
        saved.step.record_transfer(event)

    def _fail_write(self, saved: SavedTensor, error: Exception) -> None:
        """Keep a tensor whose write failed, and all later tensors of its pass. Gradients are not affected."""
        saved.state = State.RESIDENT
        self._started.pop(saved.index, None)
        self._forget(saved, keep=True)
        self._counts.refused += 1
        if not saved.step.refused:
            saved.step.refused = True
            warnings.warn(
                f"activations stay in memory for the rest of this forward pass: the store failed ({error}). "
                f"Gradients are not affected",
                RuntimeWarning,
                stacklevel=2,
            )

    def _forget(self, saved: SavedTensor, keep: bool = False) -> None:
        # Errors do not matter: no one needs the bytes, and a write that never began has no index.
        with contextlib.suppress(*_STORE_ERRORS, IndexError):
            self.store.free(saved.index)
        self._started.pop(saved.index, None)
        self._errors.pop(saved.index, None)
        if not keep:
            saved.release_bytes()
