"""Saved tensors on their way to a store and back, directly or through a slab.

From a device a write is a copy to a block of the slab, then a command of the store; a read is a command, then a copy
back, for which the host does not wait. No thread runs in the background: ``poll`` and ``advance`` take each move from
one step to the next.

An interrupt may come anywhere. So a step is marked before it begins, and what it may use is given back only when the
copies and the store say that they are done.
"""

from __future__ import annotations

import contextlib
import enum
import time
from collections.abc import Iterator
from typing import Any

from fastio.devices import Event, Mark, Stream
from fastio.errors import FastIOError
from fastio.memory.staging_buffers import PAGE
from fastio.offload.autograd.saved_tensor import SavedTensor
from fastio.offload.stores.arena import ArenaFullError
from fastio.offload.stores.slab import Staging
from fastio.offload.stores.store_errors import without_frames
from fastio.offload.stores.tiers import STORE_ERRORS, Store


class At(enum.Enum):
    """The step that a move is at."""

    BEGIN = "begin"  # of a step: a move that is found there was interrupted
    COPY = "copy"  # to the slab
    STORE = "store"  # which has a command
    END = "end"  # except a copy back, which may be pending


class TierMove:
    """A write or a read of a saved tensor. ``error``: what it failed with."""

    __slots__ = ("at", "began", "block", "error", "event", "freed", "interrupted", "reads", "saved")

    def __init__(self, saved: SavedTensor, reads: bool) -> None:
        self.saved = saved
        self.reads = reads
        self.began = time.perf_counter()
        self.at = At.BEGIN
        self.block: int | None = None  # of the slab
        self.event: Event | None = None  # that follows the copy out, or that the copy back follows
        self.error: Exception | None = None
        self.interrupted = False  # while a step began: which bytes were moved is unknown
        self.freed = False  # the graph released the tensor meanwhile

    def take_error(self) -> Exception:
        """Return the error to raise it. No frame may have a name for it then, which would keep the graph alive."""
        error, self.error = self.error, None
        assert error is not None, "it failed"
        return error


class TierMoves:
    """The moves of a tier by index, oldest first, until ``forget`` or ``pop``."""

    def __init__(self, store: Store, staging: Staging | None) -> None:
        self._store = store
        self._staging = staging
        self._moves: dict[int, TierMove] = {}
        self._stored: set[int] = set()  # indices that the store may know
        self._stream: Stream | None = None
        self.get, self.pop = self._moves.get, self._moves.pop

    def __iter__(self) -> Iterator[TierMove]:
        return iter(list(self._moves.values()))

    def writes(self) -> list[TierMove]:
        """Return the writes of tensors that the graph holds."""
        return [move for move in self._moves.values() if not (move.reads or move.freed)]

    def begin(self, saved: SavedTensor, reads: bool) -> TierMove:
        """Begin to write a tensor, or to read it into its buffer."""
        move = self._moves[saved.index] = TierMove(saved, reads)
        self._stored.add(saved.index)
        staging = self._staging
        try:
            if staging is not None:
                move.event = staging.copies.fence(saved.home) if reads else None
                move.block = self._block(staging, saved.stored_nbytes)
            if staging is None or move.block is None or reads:
                with self._behind(move):
                    self._command(move)
            else:
                copied = staging.copies.out([(move.block, saved.sent, saved.stored_nbytes)], None, saved.computed)
                move.event = copied.set()
                move.at = At.COPY
        except (*STORE_ERRORS, LookupError) as error:
            self._end(move, error)
        return move

    def advance(self, move: TierMove, wait: bool = False) -> bool:
        """Advance a move as far as possible without waiting, or to its end (``wait``). Return whether it has ended."""
        index, staging = move.saved.index, self._staging
        try:
            if move.at is At.BEGIN:
                move.interrupted = True
                move.error = FastIOError(f"index {index}: its transfer was interrupted")
                if staging is not None:
                    staging.copies.synchronize()
                move.at = At.STORE
            if move.at is At.COPY and staging is not None:
                if wait:
                    staging.copies.wait(move.event)
                elif not staging.copies.is_done(move.event):
                    return False
                if not move.freed:
                    self._command(move)
            if move.at is At.STORE:
                if wait:
                    self._store.wait(index)
                elif not self._store.is_done(index):
                    return False
                if staging is not None and move.reads and not (move.freed or move.error):
                    self._copy_back(staging, move)
        except (*STORE_ERRORS, LookupError) as error:  # LookupError: an interrupted write that the store does not know
            self._end(move, error)
        else:
            self._end(move)
        return True

    def poll(self) -> None:
        """Advance all moves without waiting: by one question to the store, if it can answer that.

        Copies out end in order: only those up to the first that has not ended are asked for.
        """
        if not self._moves:
            return
        commands = [move.saved.index for move in self._moves.values() if move.at is At.STORE]
        ended = set(commands)
        with contextlib.suppress(*STORE_ERRORS):  # it raises again for each move
            ask = getattr(self._store, "finished", None)
            if ask is None:
                self._store.update()
            elif commands:
                ended = set(ask(commands))
        copying = False
        for move in self:
            if move.at is At.COPY:
                copying = copying or (not self.advance(move) and move.at is At.COPY)
            elif move.at is At.BEGIN or move.saved.index in ended:
                self.advance(move)
        if self._staging is not None:
            self.submit()  # the writes whose copy has ended

    def submit(self) -> None:
        """Submit what began. A store that fails or is closed raises again for each tensor."""
        with contextlib.suppress(*STORE_ERRORS):
            self._store.update()

    def forget(self, saved: SavedTensor) -> None:
        """Free a tensor's bytes in the store. If it has a move, that must have ended."""
        self._moves.pop(saved.index, None)  # first: a store that cannot free it is not asked again
        self._free(saved.index)

    def reserve(self, nbytes: int) -> None:
        """Let ``nbytes`` be in the slab at a time, after all pending moves if it has to grow for that.

        Blocks of the slab that an interrupt lost are free again.
        """
        staging = self._staging
        if staging is None:
            return
        staging.free_lost([move.block for move in self if move.block is not None])
        if min(nbytes, staging.most) > staging.slab.nbytes:
            for move in self:
                self.advance(move, wait=True)
            staging.grow(min(nbytes, staging.most))

    def close(self) -> None:
        """Free all bytes in the store, and the slab. All moves must have ended."""
        for index in list(self._stored):
            self._free(index)
        if self._staging is not None:
            self._staging.close()

    def _command(self, move: TierMove) -> None:
        """Begin the command of the store, between it and the slab or the tensor."""
        saved = move.saved
        move.at = At.BEGIN
        command = self._store.read if move.reads else self._store.write
        if self._staging is not None and move.block is not None:
            # Whole pages: a disk moves whole blocks itself, parts of one by way of the host.
            address, nbytes = self._staging.slab.store_address(move.block), -(-saved.stored_nbytes // PAGE) * PAGE
        else:
            address, nbytes = _address(move) - saved.lead, saved.lead + saved.stored_nbytes
        command(saved.index, address, nbytes)
        move.at = At.STORE

    def _copy_back(self, staging: Staging, move: TierMove) -> None:
        """Begin the copy back, behind which the block is free again. What uses the bytes follows ``arrived``."""
        saved, block = move.saved, move.block
        assert block is not None, "the store filled it"
        move.at = At.BEGIN
        event = staging.copies.back(block, _address(move), saved.stored_nbytes, move.event)
        saved.arrived = Mark(None, event=event)
        move.block = None  # first: an interrupt may lose a block, and never free it twice
        staging.free_after(event, block)

    def _end(self, move: TierMove, error: Exception | None = None) -> None:
        if move.error is None and error is not None:
            move.error = without_frames(error)
        move.at = At.END
        block, move.block = move.block, None
        if block is not None and self._staging is not None:
            self._staging.slab.free(block)

    def _free(self, index: int) -> None:
        self._stored.discard(index)
        # Errors do not matter: no one needs the bytes, and a write that never began has no index.
        with contextlib.suppress(*STORE_ERRORS, LookupError):
            self._store.free(index)

    def _block(self, staging: Staging, nbytes: int) -> int:
        """Return a block of the slab, after the oldest moves if it has no room. It grows if there are none."""
        while True:
            try:
                return staging.block(nbytes)
            except ArenaFullError:
                if staging.reap(wait=True):
                    continue
                oldest = next((move for move in self if move.block is not None), None)
                if oldest is None:
                    staging.free_lost()
                    staging.slab.grow(nbytes)
                else:
                    self.advance(oldest, wait=True)

    def _behind(self, move: TierMove) -> contextlib.AbstractContextManager[Any]:
        """A context in which GPU work waits until the bytes to write are computed, and for no kernel queued later."""
        saved, accelerator = move.saved, move.saved.accelerator
        if accelerator is None or move.reads:
            return contextlib.nullcontext()
        if self._stream is None:
            self._stream = accelerator.new_stream(saved.device)
        self._stream.wait_event(saved.computed)
        return accelerator.under(self._stream)


def _address(move: TierMove) -> int:
    """Return the address of the tensor's bytes in memory."""
    if not move.reads:
        return move.saved.sent
    assert move.saved.buffer is not None, "a read has one"
    return move.saved.buffer.address
