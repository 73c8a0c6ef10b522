"""A tier: write-behind within a byte budget, reads before writes, and what to do when either fails."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections import deque
from typing import Any, Literal, Protocol

import torch

from fastio.errors import FastIOError
from fastio.offload.autograd.saved_tensor import LINE, PAGE, Buffer, SavedTensor, State
from fastio.offload.codecs.blob_encoding import unpack
from fastio.offload.report import Counts, Event, Traffic
from fastio.offload.stores.store_errors import without_frames

_REFUSALS = (FastIOError, OSError)  # what a store raises: anything else is an error of the program


class Store(Protocol):
    """What a tier asks of a store. ``write`` and ``read`` return at once; the memory must live until ``is_done``.

    One with a true attribute ``whole_pages`` prefers memory that begins on a page of 4096 bytes, and does not mind that
    other owners' bytes on that page change while it is at work.
    """

    def write(self, index: int, address: int, nbytes: int) -> Any:
        """Begin to write the bytes as this index."""

    def read(self, index: int, address: int, nbytes: int) -> Any:
        """Begin to read the bytes of this index."""

    def update(self) -> int:
        """Submit and reap; the number of commands still under way."""

    def is_done(self, index: int) -> bool:
        """Whether the index's last command is over. Raises its error."""

    def wait(self, index: int) -> Any:
        """Return when the index's last command is over. Raises its error."""

    def free(self, index: int) -> Any:
        """Forget the bytes of this index."""

    def close(self) -> Any:
        """Give everything back."""


class ActivationLostError(FastIOError, RuntimeError):
    """Bytes of a saved tensor could not be read back. Raised before the gradients of its node change."""


class Tier:
    """Moves blobs to a store and back. Not thread-safe: the manager's lock is held around every call.

    Only a tier changes a saved tensor's ``state``.

    A blob waits in ``_queued`` (live, nothing issued: can be cancelled), then in ``_issued``; both together hold at
    most ``window`` bytes. Blobs that the graph let go of while a command was under way stay in ``_leaving`` until it
    is over, for the device still uses their memory.
    """

    def __init__(self, name: str, store: Store, counts: Counts, window: int) -> None:
        self.name = name
        self.store = store
        self.window = window  # bytes of live blobs that may wait for their write
        self._counts = counts
        self._traffic = counts.traffic.setdefault(name, Traffic())
        self._whole_pages: bool = getattr(store, "whole_pages", False)
        self._queued: deque[SavedTensor] = deque()
        self._issued: deque[SavedTensor] = deque()
        self._queued_bytes = 0
        self._issued_bytes = 0
        self._reading: dict[int, SavedTensor] = {}
        self._leaving: list[SavedTensor] = []
        self._started: dict[int, float] = {}
        self._errors: dict[int, Exception] = {}

    def begin(self, window: int) -> None:
        """A forward pass begins. The one before may have been interrupted anywhere: what waits is counted anew."""
        self.window = window
        self._queued_bytes = sum(blob.stored_nbytes for blob in self._queued)
        self._issued_bytes = sum(blob.stored_nbytes for blob in self._issued)

    def take(self, blob: SavedTensor, wait: bool) -> None:
        """Begin to move a blob out. Blocks while more than ``window`` bytes wait, or any where told to.

        Never raises a store's error.
        """
        if blob.step.refused:
            return
        blob.tier = self
        blob.state = State.PENDING
        if blob.device.type == "cuda":
            blob.stream = torch.cuda.current_stream(blob.device)
        self._queued.append(blob)
        self._queued_bytes += blob.stored_nbytes
        self.pump()
        limit = 0 if wait else self.window
        # Bytes of one that was interrupted are counted until the next pass begins.
        while self.waiting_bytes > limit and (self._issued or self._queued):
            if self._issued:
                self._finish_write(self._issued[0])
            else:  # held back for the sake of reads, but there is no more room to wait in
                self._issue(self._queued.popleft())
            self.pump()

    def pump(self) -> None:
        """Reap what is over and issue what waits. Writes stand back while anything is being read."""
        self._update()
        while self._issued and self._is_over(self._issued[0]):
            self._finish_write(self._issued[0])
        for blob in [blob for blob in self._leaving if self._is_over(blob)]:
            self._forget(blob)  # first: interrupted after that, it is done again, which does no harm
            self._leaving.remove(blob)
        if not self._queued or any(
            blob.state is State.INFLIGHT and not self._is_over(blob) for blob in self._reading.values()
        ):
            return
        depth = max(1, self.window // 2)
        while self._queued and self._issued_bytes < depth:
            self._issue(self._queued.popleft())
        self._update()

    def cancel(self, blob: SavedTensor) -> None:
        """Backward asks for a blob that still waits to be written: it need not be any more, if nothing was issued."""
        if blob.state is State.PENDING and blob in self._queued:
            self._queued.remove(blob)
            self._queued_bytes -= blob.stored_nbytes
            blob.state = State.RESIDENT
            self._counts.cancelled += 1

    def fetch(self, blob: SavedTensor) -> None:
        """Begin to read a blob back; it is under way after the next ``pump``, or when it is waited for.

        MemoryError or torch's own, with nothing changed, where there is no memory for it.
        """
        if blob.encoded is None:
            blob.buffer = Buffer.like_source(blob.span, blob.source_nbytes, blob.device, blob.lead)
        else:
            blob.buffer = Buffer.for_payload(blob.stored_nbytes, blob.device, blob.lead)
        blob.state = State.INFLIGHT
        self._reading[blob.index] = blob
        self._started[blob.index] = time.perf_counter()
        try:
            self._read(blob)
        except _REFUSALS as error:
            self._errors[blob.index] = without_frames(error)  # it is tried once more when the blob is needed
        self._counts.stalled_read_s += self._stalled(blob, self._started[blob.index])  # a store may do it at once

    def finish(self, blob: SavedTensor) -> None:
        """Wait until a blob is back. Raises ActivationLostError after a second failure."""
        began = time.perf_counter()
        try:
            self._settle(blob)
            settled = time.perf_counter()
            self._decode(blob)
        except _REFUSALS as first:
            self._counts.retried += 1
            try:
                self._read(blob)
                self.store.wait(blob.index)
                settled = time.perf_counter()
                self._decode(blob)
            except _REFUSALS as second:
                blob.state = State.FAILED
                self._reading.pop(blob.index, None)
                raise ActivationLostError(
                    f"saved tensor {blob.ordinal} of forward pass {blob.step.number} ({blob.nbytes} bytes from byte "
                    f"{blob.span.start} of its storage, number {blob.index} at the store) could not be read back: "
                    f"{second}; the first try said: {first}. The gradients of this step are incomplete: "
                    f"discard them (optimizer.zero_grad) and repair the store before a new Offload is made"
                ) from second
        blob.state = State.RESIDENT
        self._reading.pop(blob.index, None)
        self._traffic.read_bytes += blob.stored_nbytes
        self._traffic.reads += 1
        self._counts.stalled_read_s += self._stalled(blob, began, settled)
        self._tell("read", blob, began, settled)

    def unload(self, blob: SavedTensor) -> None:
        """Drop the memory of a blob that was read back; the store still has its bytes."""
        blob.buffer = None
        blob.state = State.DISK

    def drop(self, blob: SavedTensor) -> None:
        """The graph let go of a blob: free its bytes now, or when its command is over."""
        self.cancel(blob)
        if blob.state is State.RESIDENT and blob.held:  # never written
            blob.let_go()
            return
        if blob in self._issued:
            self._issued.remove(blob)
            self._issued_bytes -= blob.stored_nbytes
        self._reading.pop(blob.index, None)
        if self._is_over(blob):
            self._forget(blob)
        else:
            self._leaving.append(blob)

    def drain(self) -> None:
        """Wait until nothing is under way. Errors of reads are left to who asks for the blob."""
        while self._queued or self._issued:
            while self._issued:
                self._finish_write(self._issued[0])
            if self._queued:
                self._issue(self._queued.popleft())
        for blob in [*self._leaving, *self._reading.values()]:
            if not self._is_over(blob):
                with contextlib.suppress(*_REFUSALS):
                    self.store.wait(blob.index)
        self.pump()

    @property
    def queued_bytes(self) -> int:
        """Bytes of live blobs that the store has not heard of yet."""
        return self._queued_bytes

    @property
    def waiting_bytes(self) -> int:
        """Bytes of live blobs whose write is not over."""
        return self._queued_bytes + self._issued_bytes

    def _issue(self, blob: SavedTensor) -> None:
        self._queued_bytes -= blob.stored_nbytes
        if blob.step.refused:
            blob.state = State.RESIDENT
            return
        self._started[blob.index] = time.perf_counter()
        blob.sent = blob.address
        blob.lead = self._lead(blob.sent)
        # It may be issued much later, under another stream: the copy must follow the one that computes the bytes.
        under = contextlib.nullcontext() if blob.stream is None else torch.cuda.stream(blob.stream)
        try:
            with under:
                self.store.write(blob.index, blob.sent - blob.lead, blob.lead + blob.stored_nbytes)
        except _REFUSALS as error:
            self._refuse(blob, error)
        else:
            self._counts.stalled_write_s += self._stalled(blob, self._started[blob.index])
            self._issued.append(blob)
            self._issued_bytes += blob.stored_nbytes

    def _read(self, blob: SavedTensor) -> None:
        assert blob.buffer is not None, "fetch gave it one"
        self.store.read(blob.index, blob.buffer.address - blob.lead, blob.lead + blob.stored_nbytes)

    def _lead(self, address: int) -> int:
        """How many bytes before the blob's travel with it, so that the device reaches its memory as it lies.

        They are whatever lies there (torch's tensors begin 64 bytes into a page), on a page that is the blob's.
        """
        lead = address % PAGE
        return lead if self._whole_pages and lead % LINE == 0 else 0

    def _update(self) -> None:
        # A store that refuses, or is closed, says so again of each blob that is asked for.
        with contextlib.suppress(*_REFUSALS):
            self.store.update()

    def _is_over(self, blob: SavedTensor) -> bool:
        if blob.index in self._errors:
            return True
        try:
            return self.store.is_done(blob.index)
        except _REFUSALS as error:
            self._errors[blob.index] = without_frames(error)  # kept: a store may tell of it only once
            return True
        except IndexError:  # who was interrupted before it was written, or after it was freed
            return True

    def _settle(self, blob: SavedTensor) -> None:
        """Wait for the blob's command; raises its error."""
        if blob.index in self._errors:
            raise self._errors.pop(blob.index)
        self.store.wait(blob.index)

    def _decode(self, blob: SavedTensor) -> None:
        if blob.encoded is not None:
            assert blob.buffer is not None, "fetch gave it one"
            blob.buffer = unpack(blob, blob.buffer.bytes(blob.stored_nbytes))

    def _finish_write(self, blob: SavedTensor) -> None:
        began = time.perf_counter()
        self._issued.remove(blob)
        self._issued_bytes -= blob.stored_nbytes
        try:
            self._settle(blob)
        except _REFUSALS as error:
            self._refuse(blob, error)
            return
        if blob.address != blob.sent:  # torch moved them meanwhile (``share_memory_``): nobody knows what was written
            blob.state = State.RESIDENT
            self._forget(blob, keep=True)
            self._counts.moved += 1
            return
        now = time.perf_counter()
        blob.let_go()
        blob.state = State.DISK
        self._traffic.written_bytes += blob.stored_nbytes
        self._traffic.writes += 1
        self._counts.stalled_write_s += self._stalled(blob, began, now)
        self._tell("write", blob, began, now)

    def _stalled(self, blob: SavedTensor, began: float, ended: float | None = None) -> float:
        """Seconds that compute stood still, which its step hears of."""
        seconds = (time.perf_counter() if ended is None else ended) - began
        blob.step.stalled(seconds)
        return seconds

    def _tell(self, op: Literal["write", "read"], blob: SavedTensor, waited_from: float, now: float) -> None:
        event = Event(
            op,
            blob.step.number,
            blob.ordinal,
            blob.stored_nbytes,
            self._started.pop(blob.index, waited_from),
            now,
            self.name,
        )
        self._counts.events.append(event)
        blob.step.moved(event)

    def _refuse(self, blob: SavedTensor, error: Exception) -> None:
        """A write failed: the tensor stays, and so does all else of its step. Gradients are what they would be."""
        blob.state = State.RESIDENT
        self._started.pop(blob.index, None)
        self._forget(blob, keep=True)
        self._counts.refused += 1
        if not blob.step.refused:
            blob.step.refused = True
            warnings.warn(
                f"activations stay in memory for the rest of this forward pass: the store failed ({error}). "
                f"Gradients are not affected",
                RuntimeWarning,
                stacklevel=2,
            )

    def _forget(self, blob: SavedTensor, keep: bool = False) -> None:
        # Nothing hangs on it: the bytes are wanted by nobody, and a write that never began has no index to free.
        with contextlib.suppress(*_REFUSALS, IndexError):
            self.store.free(blob.index)
        self._started.pop(blob.index, None)
        self._errors.pop(blob.index, None)
        if not keep:
            blob.let_go()
