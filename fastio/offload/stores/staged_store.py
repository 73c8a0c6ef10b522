"""Stores GPU memory in a store that only reaches host memory, through a slab of pinned memory.

A write is a copy to the slab, then a write of the underlying store. A read is a read of that store, then a copy back.
No thread runs in the background: ``update``, ``is_done`` and ``wait`` take each blob from one step to the next. Of a
read the host need not wait for the copy back: ``arrive`` returns the event that the users of the bytes must follow.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastio.devices import Event
from fastio.errors import FastIOError
from fastio.memory.staging_buffers import PAGE, HostMemory
from fastio.offload.stores.arena import ArenaFullError
from fastio.offload.stores.copies import CpuCopies
from fastio.offload.stores.slab import MappedMemory, Slab
from fastio.offload.stores.store_errors import raisable_copy, without_frames
from fastio.offload.stores.tiers import STORE_ERRORS, Store


@dataclass(slots=True)
class _Blob:
    nbytes: int
    stored: bool = False  # the underlying store may know the index
    written: bool = False  # the underlying store has all bytes
    error: Exception | None = None  # of the last command
    reported: bool = False  # the error was raised to the caller


@dataclass(slots=True)
class _Move:
    """A blob on its way through its block of the slab, from or to the caller's memory at ``address``."""

    blob: _Blob
    block: int
    address: int
    nbytes: int
    reads: bool
    copies: bool  # a copy is pending, else a command of the store. Begins as if the other had ended
    fence: Event | None = None  # that a copy back follows
    copy: Event | None = None  # that follows the pending copy
    filling: bool = False  # a copy back is pending, and not every use of the caller's memory follows it
    freed: bool = False  # the blob was freed meanwhile


class StagedStore:
    """A store (:class:`~fastio.offload.stores.tiers.Store`) on top of another, for the addresses ``copies`` reach.

    The slab of ``nbytes`` bounds how much moves at a time: a command without room waits for the oldest ones. A blob
    larger than the slab makes it grow. The memory is allocated with the first command and freed by ``close``, which
    leaves the underlying store open. If that store's ``wants_map`` is true, the slab is mapped, so that its devices use
    it without a copy. ``slab`` is used instead of host memory if it is given; it may be the device's. Not thread-safe:
    use one lock around all calls.
    """

    def __init__(self, store: Store, copies: CpuCopies, nbytes: int, slab: Slab | None = None) -> None:
        self._store = store
        self._copies = copies
        self._slab = slab or Slab(nbytes, partial(_host_memory, store, copies))
        self._blobs: dict[int, _Blob] = {}
        self._moves: dict[int, _Move] = {}  # by index, oldest first

    def write(self, index: int, address: int, nbytes: int) -> None:
        """Begin to write a new blob.

        ValueError if the index is taken, RefusedError if the memory or the copy is refused. ``is_done`` and ``wait``
        raise errors of the underlying store.
        """
        if index in self._blobs:
            raise ValueError(f"index {index} is in the staged store: free it first")
        self._finish(index)  # a freed blob of this index may still be moving
        self._start(index, _Move(_Blob(nbytes), self._block(nbytes), address, nbytes, reads=False, copies=False))

    def read(self, index: int, address: int, nbytes: int) -> None:
        """Begin to read a blob's first ``nbytes``, after its pending command.

        IndexError if there is no such blob, ValueError if it is shorter. Raises the error of its write if that failed,
        and the error of an earlier read if it was not raised yet; then the read may be retried.
        """
        blob = self._blob(index)
        if nbytes > blob.nbytes:
            raise ValueError(f"cannot read {nbytes} bytes of index {index}, which has {blob.nbytes}")
        fence = self._copies.fence()
        self._finish(index)
        if not (blob.reported and blob.written):
            _raise_error(blob)
        blob.error, blob.reported = None, False
        self._start(index, _Move(blob, self._block(nbytes), address, nbytes, reads=True, copies=True, fence=fence))

    def reserve(self, nbytes: int) -> None:
        """Make the slab hold ``nbytes``, after all pending moves. If the memory is refused, warn and keep the slab."""
        if nbytes <= self._slab.nbytes:
            return
        for index in list(self._moves):
            self._finish(index)
        try:
            self._slab.grow(nbytes)
        except STORE_ERRORS as error:
            warnings.warn(
                f"{nbytes} bytes of memory for transfers were refused ({error}): they go through "
                f"{self._slab.nbytes} bytes, and may wait for each other",
                RuntimeWarning,
                stacklevel=2,
            )

    def update(self) -> int:
        """Advance every blob as far as possible without waiting; return how many are still moving.

        The store is asked once for all, and of the copies in a direction only up to the first that is not done.
        """
        commands = [index for index, move in self._moves.items() if not move.copies]
        ask = getattr(self._store, "finished", None)
        ended = set(commands if ask is None or not commands else ask(commands))
        waiting = set()  # the directions with a copy that is not done
        for index, move in list(self._moves.items()):
            if not move.copies:
                if index in ended:
                    self._advance(index)
            elif move.reads not in waiting and not self._advance(index):
                waiting.add(move.reads)
        self._store.update()
        return len(self._moves)

    def finished(self, indices: Sequence[int]) -> list[int]:
        """Return those of the indices of which nothing is pending, after an update; see :class:`Store`."""
        self.update()
        return [index for index in indices if index not in self._moves]

    def is_done(self, index: int) -> bool:
        """Return whether nothing of this blob is pending. Raises the error of its last command."""
        blob = self._blob(index)
        self._advance(index)
        if index in self._moves:
            return False
        _raise_error(blob)
        return True

    def wait(self, index: int) -> None:
        """Wait until nothing of this blob is pending. Raises the error of its last command."""
        blob = self._blob(index)
        self._finish(index)
        _raise_error(blob)

    def arrive(self, index: int) -> Event | None:
        """Wait until a blob's read is in the slab; return the event that follows its copy, None if that has ended.

        Work that uses the bytes must follow the event. Raises the error of the read.
        """
        self._blob(index)
        while (move := self._moves.get(index)) is not None and not move.copies:
            self._advance(index, once=True)
        if move is None or not self._copies.streams:  # which alone could follow an event
            self.wait(index)
            return None
        move.filling = False
        return move.copy

    def free(self, index: int) -> None:
        """Free a blob, even with pending commands. IndexError if there is none.

        Waits for a copy back, unless it arrived, so the caller may reuse the memory of its reads. A pending write may
        still read the caller's memory.
        """
        blob = self._blob(index)
        del self._blobs[index]
        move = self._moves.get(index)
        if move is None:
            self._forget(index, blob)
            return
        move.freed = True
        if move.filling:
            self._finish(index)

    def __contains__(self, index: int) -> bool:
        return index in self._blobs

    @property
    def stats(self) -> Any:
        """The statistics of the underlying store, if it has any."""
        return getattr(self._store, "stats", None)

    @property
    def used(self) -> int:
        """Bytes of the slab in use."""
        return self._slab.used

    def close(self) -> None:
        """Wait for pending moves, free all blobs and the slab. May be called twice."""
        for index in list(self._blobs):
            self.free(index)
        for index in list(self._moves):
            self._finish(index)
        self._slab.close()

    def _start(self, index: int, move: _Move) -> None:
        try:
            self._begin(index, move)
            self._blobs[index] = move.blob
            self._moves[index] = move
        except STORE_ERRORS:
            self._slab.free(move.block)
            raise
        except BaseException:  # an interrupt may come after a copy was issued, which uses the caller's memory
            self._copies.synchronize()
            self._moves.pop(index, None)
            if not move.blob.stored:  # no command of the store uses the block
                self._slab.free(move.block)
            raise

    def _begin(self, index: int, move: _Move) -> None:
        """Begin the copy after the command of the store, or the command after the copy."""
        block, address = move.block, move.address
        if move.copies:
            move.blob.stored = True  # first: an interrupt may come behind the call
            begin = self._store.read if move.reads else self._store.write
            # Whole pages: a disk moves whole blocks itself, parts of one by way of the host.
            begin(index, self._slab.store_address(block), -(-move.nbytes // PAGE) * PAGE)
        elif move.reads:
            move.filling = True
            move.copy = self._copies.back(block, address, move.nbytes, move.fence)
        else:
            move.copy = self._copies.out(address, block, move.nbytes)
        move.copies = not move.copies

    def _advance(self, index: int, wait: bool = False, once: bool = False) -> bool:
        """Advance a blob as far as possible without waiting, to the end (``wait``), or by one step, waiting for it.

        Frees its block when it is done. Return whether any step ended.
        """
        move = self._moves.get(index)
        if move is None:
            return False
        advanced = False
        try:
            while not (once and advanced):
                if not self._has_ended(index, move, wait or once):
                    return advanced
                advanced = True
                if move.freed or move.copies == move.reads:  # a read ends with a copy, a write with a command
                    move.blob.written |= not move.copies
                    break
                self._begin_next(index, move)
            else:
                return True
        except STORE_ERRORS as error:
            move.blob.error = without_frames(error)
        del self._moves[index]
        self._slab.free(move.block)
        if move.freed:
            self._forget(index, move.blob)
        return True

    def _has_ended(self, index: int, move: _Move, wait: bool) -> bool:
        if wait:
            self._copies.wait(move.copy) if move.copies else self._store.wait(index)
            return True
        return self._copies.is_done(move.copy) if move.copies else self._store.is_done(index)

    def _begin_next(self, index: int, move: _Move) -> None:
        try:
            self._begin(index, move)
        except STORE_ERRORS:
            raise
        except BaseException:  # such as an interrupt, before or after the device began to use the block
            move.blob.error = FastIOError(f"index {index}: its transfer was interrupted")
            self._moves.pop(index, None)  # the block is never reused
            self._copies.synchronize()
            raise

    def _finish(self, index: int) -> None:
        self._advance(index, wait=True)

    def _block(self, nbytes: int) -> int:
        while True:
            try:
                return self._slab.ephemeral(nbytes)
            except ArenaFullError:
                if self._moves:
                    self._finish(next(iter(self._moves)))
                else:
                    self._slab.grow(nbytes)

    def _forget(self, index: int, blob: _Blob) -> None:
        if blob.stored:
            with contextlib.suppress(IndexError):  # its write never began
                self._store.free(index)

    def _blob(self, index: int) -> _Blob:
        blob = self._blobs.get(index)
        if blob is None:
            raise IndexError(f"index {index} is not in the staged store")
        return blob


def _host_memory(store: Any, copies: CpuCopies, nbytes: int) -> HostMemory | MappedMemory:
    """Return memory that a forked process can read blobs of CPU tensors from, unless a device has it."""
    mapped = getattr(store, "wants_map", False)
    memory = HostMemory(nbytes, copies.pin_for, inherited=copies.pin_for is None and not mapped)
    return MappedMemory(nbytes, store, memory) if mapped else memory


def _raise_error(blob: _Blob) -> None:
    if blob.error is not None:
        blob.reported = True
        raise raisable_copy(blob.error)
