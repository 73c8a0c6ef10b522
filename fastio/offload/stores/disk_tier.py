"""A tier on a store of the user's or on a disk: the write queue, and what reads back."""

from __future__ import annotations

import time

from fastio.devices import Mark
from fastio.offload.autograd.buffer import Buffer
from fastio.offload.autograd.saved_tensor import SavedTensor, State
from fastio.offload.stores.store_errors import without_frames
from fastio.offload.stores.tiers import STORE_ERRORS
from fastio.offload.stores.write_queue import WriteQueue


class DiskTier(WriteQueue):
    """Moves saved tensors to a store and back."""

    def fetch(self, *several: SavedTensor) -> None:
        """Begin to read tensors back; they are submitted by the next ``pump``, or when they are waited for.

        Raises MemoryError, or torch's error, with nothing changed for the first of them that there is no memory for.
        """
        for saved in several:
            self._fetch(saved)

    def _fetch(self, saved: SavedTensor) -> None:
        if saved.encoded is None:
            saved.buffer = Buffer.like_source(saved.span, saved.source_nbytes, saved.device, saved.lead)
        else:
            saved.buffer = Buffer.for_payload(saved.stored_nbytes, saved.device, saved.lead)
        if saved.accelerator is not None:
            saved.home = saved.accelerator.current_stream(saved.device)
        saved.state = State.INFLIGHT
        self._loaded.add(saved)
        self._reading[saved.index] = saved
        began = self._started[saved.index] = time.perf_counter()
        try:
            self._read(saved)
        except STORE_ERRORS as error:
            self._errors[saved.index] = without_frames(error)  # retried when the tensor is needed
        self._counts.stalled_read_s += self._stalled(saved, began)  # some stores read synchronously

    def bring(self, saved: SavedTensor) -> None:
        """Wait until a tensor is back, which is read now if need be. Raises ActivationLostError after two failures."""
        if saved.state is State.DISK:
            self.fetch(saved)
        began = time.perf_counter()
        try:
            if saved.index in self._errors:
                raise self._errors.pop(saved.index)
            self._arrive(saved)
            settled = time.perf_counter()
            self._decode(saved)
        except STORE_ERRORS as first:
            self._counts.retried += 1
            try:
                self._read(saved)
                self._arrive(saved)
                settled = time.perf_counter()
                self._decode(saved)
            except STORE_ERRORS as second:
                self._reading.pop(saved.index, None)
                raise self._lost(saved, first, second) from second
        saved.state = State.RESIDENT
        self._reading.pop(saved.index, None)
        self._record("read", saved, self._started.pop(saved.index, began), began, settled)

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
        if saved.state is State.DISK or self._is_over(saved.index):  # in the store, and no command is pending
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
            if not self._is_over(saved.index):
                try:
                    self.store.wait(saved.index)
                except STORE_ERRORS as error:
                    self._errors[saved.index] = without_frames(error)  # kept: a store may raise it only once
        self.pump()

    def _arrive(self, saved: SavedTensor) -> None:
        """Wait until the bytes are there, or, on a device, until the event that precedes them is queued."""
        arrive = getattr(self.store, "arrive", None)
        if arrive is None:
            self.store.wait(saved.index)
        event = None if arrive is None else arrive(saved.index)
        saved.ready = None if event is None else Mark(None, event=event)

    def _read(self, saved: SavedTensor) -> None:
        assert saved.buffer is not None, "fetch gave it one"
        self.store.read(saved.index, saved.buffer.address - saved.lead, saved.lead + saved.stored_nbytes)
