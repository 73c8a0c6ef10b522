"""A tier on a store of the user's or on a disk: writes behind compute within a byte budget, and after reads."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator

from fastio.offload.autograd.buffer import Buffer
from fastio.offload.autograd.saved_tensor import SavedTensor, State
from fastio.offload.autograd.trace import DISK
from fastio.offload.autograd.views import LINE, PAGE
from fastio.offload.report import Counts
from fastio.offload.stores.slab import Staging
from fastio.offload.stores.tier_moves import At, TierMove, TierMoves
from fastio.offload.stores.tiers import STORE_ERRORS, Loaded, Store, Tier


class DiskTier(Tier):
    """Moves the saved tensors of one device to a store and back; through ``staging``, if it is given.

    A tensor waits in ``_queued`` (live, not issued, can be cancelled), then has a write in ``_moves``. If the graph
    releases a tensor during a move, that stays there until it ends, because devices still use its memory.
    """

    name = DISK

    def __init__(
        self, store: Store, counts: Counts, loaded: Loaded, window: int, staging: Staging | None = None
    ) -> None:
        super().__init__(counts, loaded)
        self.window = window  # bytes of live tensors that may wait for their write
        self._whole_pages: bool = staging is None and getattr(store, "whole_pages", False)
        self._moves = TierMoves(store, staging)
        self._queued: deque[SavedTensor] = deque()
        self.waiting_bytes = 0  # of live tensors whose write has not ended

    def begin_pass(self, window: int, transit: int) -> None:
        """Begin a forward pass, in which ``transit`` bytes may be written and read at a time.

        The pass before may have been interrupted anywhere, so waiting bytes are recounted.
        """
        self.window = window
        self.waiting_bytes = sum(saved.stored_nbytes for saved in self.waiting())
        self._moves.reserve(transit)

    def move_out(self, saved: SavedTensor, limit: int) -> None:
        """Begin to move a tensor out. Blocks while more than ``limit`` bytes wait for their write.

        Never raises an error of the store.
        """
        saved.state = State.PENDING
        saved.computed = None if saved.stream is None else saved.stream.record_event()
        self._queued.append(saved)
        self.waiting_bytes += saved.stored_nbytes
        self.pump()
        # After an interrupt, bytes of a lost tensor count until the next pass begins.
        while self.waiting_bytes > limit and self._finish_oldest():
            self.pump()

    def pump(self, needed: Collection[int] | None = None) -> None:
        """Reap finished moves and issue queued writes. Writes wait while a read is in flight.

        Written tensors stay in memory. In backward, only those with the indices ``needed``, which it is about to use;
        they are not written any more.
        """
        self._moves.poll()
        reading = False
        in_order = True  # so far all writes have ended
        for move in self._moves:
            if move.freed and move.at is At.END:
                self._forget(move.saved)
            elif not (move.reads or move.freed):
                in_order = in_order and move.at is At.END
                if in_order:
                    self._finish_write(move, needed)
            elif move.at is not At.END and not move.freed:
                reading = True
        if not self._queued or reading:
            return
        depth = max(1, self.window // 2)
        # At least two: if they go through host memory, one is copied there while the other is written.
        while self._queued:
            issued = [move.saved.stored_nbytes for move in self._moves.writes()]
            if len(issued) >= 2 and sum(issued) >= depth:
                break
            if needed is not None and self._queued[0].index in needed:
                break
            self._issue(self._queued.popleft())
        self._moves.submit()

    def cancel(self, saved: SavedTensor) -> None:
        """Drop a write that has not been issued, because backward needs the tensor."""
        if saved.state is State.PENDING and saved in self._queued:
            self._queued.remove(saved)
            self.waiting_bytes -= saved.stored_nbytes
            saved.state = State.RESIDENT
            self._counts.cancelled += 1

    def waiting(self) -> Iterator[SavedTensor]:
        """The saved tensors whose write has not ended."""
        yield from self._queued
        for move in self._moves.writes():
            yield move.saved

    @property
    def released_bytes(self) -> int:
        """Bytes in memory of tensors that the graph has released, and whose move has not been seen to end."""
        return sum(move.saved.nbytes for move in self._moves if move.freed)

    def unload(self, saved: SavedTensor) -> None:
        """Drop the bytes in memory of a tensor in ``loaded``, which is not being read; the store has them too."""
        saved.release_bytes()
        saved.state = State.DISK
        self._loaded.discard(saved)

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
        saved.arrived = None
        saved.state = State.INFLIGHT
        self._loaded.add(saved)
        move = self._moves.begin(saved, reads=True)  # one that fails is tried again when the tensor is needed
        self._counts.stalled_read_s += self._stalled(move)  # some stores read synchronously

    def bring(self, saved: SavedTensor) -> None:
        """Wait until a tensor is back, which is read now if need be. Raises ActivationLostError after two failures.

        On a device the host waits only until the copy back is queued: what uses the bytes follows ``saved.ready``.
        """
        if saved.state is State.DISK:
            self.fetch(saved)
        began = time.perf_counter()
        try:
            move, settled = self._arrive(saved)
        except STORE_ERRORS as first:
            self._counts.retried += 1
            self._moves.pop(saved.index, None)
            try:
                move, settled = self._arrive(saved)
            except STORE_ERRORS as second:
                self._moves.pop(saved.index, None)
                raise self._lost(saved, first, second) from second
        saved.state = State.RESIDENT
        self._moves.pop(saved.index, None)
        self._record("read", (saved,), move.began, settled, settled - began)

    def abandon(self, saved: SavedTensor) -> None:
        """Drop the bytes of a tensor that is being read, after a wait for the read."""
        move = self._moves.get(saved.index)
        if move is not None:
            self._moves.advance(move, wait=True)
            self._moves.pop(saved.index)
        saved.free_behind_arrival()
        self.unload(saved)

    def drop(self, saved: SavedTensor) -> None:
        """Free the bytes of a tensor that the graph released, now or when its move ends."""
        self.cancel(saved)
        if saved in self._loaded and saved.state is State.RESIDENT:
            self.unload(saved)
        if saved.state is State.RESIDENT and saved.held:  # never written
            saved.release_bytes()
            return
        self._loaded.discard(saved)
        move = self._moves.get(saved.index)
        if move is not None and not move.freed:
            move.freed = True
            self.waiting_bytes -= 0 if move.reads else saved.stored_nbytes
        if move is None or self._moves.advance(move):
            self._forget(saved)

    def drain(self) -> None:
        """Wait until nothing is pending. Errors of reads are raised when the tensor is needed."""
        while self._finish_oldest():
            self.pump()
        for move in self._moves:
            self._moves.advance(move, wait=True)
        self.pump()

    def close(self) -> None:
        """Free all bytes in the store and on the way there, after a ``drain``."""
        self._moves.close()

    def _issue(self, saved: SavedTensor) -> None:
        if saved.step.refused or not saved.is_whole:
            self._counts.moved += not saved.is_whole
            self.waiting_bytes -= saved.stored_nbytes
            saved.state = State.RESIDENT
            return
        saved.sent = saved.address
        # Bytes before the tensor on its page are transferred with it, so that the device can use its memory directly
        # (torch's tensors begin 64 bytes into a page). They are whatever is there.
        lead = saved.sent % PAGE
        saved.lead = lead if self._whole_pages and lead % LINE == 0 else 0
        move = self._moves.begin(saved, reads=False)
        if move.error is not None:
            self._finish_write(move)
        else:
            self._counts.stalled_write_s += self._stalled(move)

    def _finish_oldest(self) -> bool:
        """Wait for the oldest write, or issue one if there is none: reads come first, but it must move now."""
        writes = self._moves.writes()
        if writes:
            self._finish_write(writes[0])
        elif self._queued:
            self._issue(self._queued.popleft())
        else:
            return False
        return True

    def _finish_write(self, move: TierMove, needed: Collection[int] | None = None) -> None:
        saved, began = move.saved, time.perf_counter()
        self._moves.advance(move, wait=True)
        self.waiting_bytes -= saved.stored_nbytes
        if move.error is None and saved.is_as_sent:
            now = time.perf_counter()
            self._record("write", (saved,), move.began, now, now - began)
            self._loaded.add(saved)
            self._moves.pop(saved.index, None)
            saved.state = State.RESIDENT
            if needed is not None and saved.index not in needed:
                self.unload(saved)
            return
        self._moves.forget(saved)
        if move.error is not None and not move.interrupted:
            self._refuse(saved, move.error)
            return
        saved.state = State.RESIDENT
        if move.error is None:
            self._counts.moved += 1

    def _arrive(self, saved: SavedTensor) -> tuple[TierMove, float]:
        """Let a tensor's bytes be there, or on a device behind ``saved.ready``. Return its read, and when it ended."""
        move = self._moves.get(saved.index) or self._moves.begin(saved, reads=True)
        self._moves.advance(move, wait=True)
        if move.error is not None:
            raise move.take_error()
        saved.ready = saved.arrived
        settled = time.perf_counter()
        self._decode(saved)
        return move, settled

    def _forget(self, saved: SavedTensor) -> None:
        if saved.state is State.INFLIGHT:
            saved.free_behind_arrival()
        self._moves.forget(saved)
        saved.release_bytes()

    def _stalled(self, move: TierMove) -> float:
        """Return the seconds that compute waited for a move to begin, and record them in the pass."""
        seconds = time.perf_counter() - move.began
        move.saved.step.record_stall(seconds)
        return seconds
