"""Stores GPU memory in a store that only reaches host memory, through a slab of pinned memory.

A write is a copy to the slab, then a write of the underlying store. A read is a read of that store, then a copy back.
No thread runs in the background: ``update``, ``is_done`` and ``wait`` take each blob from one step to the next. Of a
read the host need not wait for the copy back: ``arrive`` returns the event that the users of the bytes must follow.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastio.devices import Event
from fastio.errors import FastIOError
from fastio.memory.staging_buffers import PAGE
from fastio.offload.stores.arena import ArenaFullError
from fastio.offload.stores.copies import Copies, Copy, Target
from fastio.offload.stores.slab import Slab
from fastio.offload.stores.store_errors import raisable_copy, without_frames
from fastio.offload.stores.tiers import Store

_STORE_ERRORS = (FastIOError, OSError)


@dataclass(slots=True)
class _Blob:
    nbytes: int
    stored: bool = False  # the underlying store knows the index
    written: bool = False  # the underlying store has all bytes
    filling: bool = False  # the caller's memory is being written, and not every use of it follows that
    error: Exception | None = None  # of the last command
    reported: bool = False  # the error was raised to the caller


@dataclass(slots=True)
class _Command:
    """A pending command of the underlying store."""

    store: Store
    index: int

    def is_done(self) -> bool:
        return self.store.is_done(self.index)

    def wait(self) -> None:
        self.store.wait(self.index)


@dataclass(slots=True)
class _Move:
    """A blob in transit through its block of the slab. ``current`` is pending; ``steps`` yields what follows."""

    blob: _Blob
    block: int
    steps: Iterator[Copy | _Command]
    current: Copy | _Command
    reads: bool
    freed: bool = False  # the blob was freed meanwhile


class StagedStore:
    """A store (:class:`~fastio.offload.stores.tiers.Store`) on top of another, for the addresses ``copies`` reach.

    The slab of ``nbytes`` bounds how much moves at a time: a command without room waits for the oldest ones. A blob
    larger than the slab makes it grow. The memory is allocated with the first command and freed by ``close``, which
    leaves the underlying store open. If that store's ``wants_map`` is true, the slab is mapped, so that its devices use
    it without a copy. ``slab`` is used instead of host memory if it is given; it may be the device's. Not thread-safe:
    use one lock around all calls.
    """

    def __init__(self, store: Store, copies: Copies, nbytes: int, slab: Slab | None = None) -> None:
        self._store = store
        self._copies = copies
        mapper: Any = store if getattr(store, "wants_map", False) else None
        self._slab = slab or Slab(nbytes, copies.pin_for, mapper)
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
        blob = _Blob(nbytes)
        block = self._block(nbytes)
        self._start(index, blob, block, self._writing(index, blob, block, address), reads=False)

    def read(self, index: int, address: int, nbytes: int) -> None:
        """Begin to read a blob's first ``nbytes``, after its pending command.

        IndexError if there is no such blob, ValueError if it is shorter. Raises the error of its write if that failed,
        and the error of an earlier read if it was not raised yet; then the read may be retried.
        """
        blob = self._blob(index)
        if nbytes > blob.nbytes:
            raise ValueError(f"cannot read {nbytes} bytes of index {index}, which has {blob.nbytes}")
        target = self._copies.target(address, nbytes)
        self._finish(index)
        if not (blob.reported and blob.written):
            _raise_error(blob)
        blob.error, blob.reported = None, False
        block = self._block(nbytes)
        self._start(index, blob, block, self._reading(index, blob, block, target), reads=True)

    def reserve(self, nbytes: int) -> None:
        """Make the slab hold ``nbytes``, after all pending moves. If the memory is refused, warn and keep the slab."""
        if nbytes <= self._slab.nbytes:
            return
        for index in list(self._moves):
            self._finish(index)
        try:
            self._slab.grow(nbytes)
        except _STORE_ERRORS as error:
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
        commands = [index for index, move in self._moves.items() if isinstance(move.current, _Command)]
        ask = getattr(self._store, "finished", None)
        ended = set(commands if ask is None or not commands else ask(commands))
        waiting = set()  # the directions with a copy that is not done
        for index, move in list(self._moves.items()):
            if isinstance(move.current, _Command):
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
        blob = self._blob(index)
        while (move := self._moves.get(index)) is not None and isinstance(move.current, _Command):
            self._advance(index, step=True)
        event: Event | None = None if move is None else getattr(move.current, "event", None)
        if event is None:
            self.wait(index)
        else:
            blob.filling = False
        return event

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
        if blob.filling:
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

    def _writing(self, index: int, blob: _Blob, block: int, address: int) -> Iterator[Copy | _Command]:
        yield self._copies.out(address, block, blob.nbytes)
        self._store.write(index, self._slab.store_address(block), _whole_pages(blob.nbytes))
        blob.stored = True
        yield _Command(self._store, index)
        blob.written = True

    def _reading(self, index: int, blob: _Blob, block: int, target: Target) -> Iterator[Copy | _Command]:
        self._store.read(index, self._slab.store_address(block), _whole_pages(target.nbytes))
        yield _Command(self._store, index)
        blob.filling = True
        yield self._copies.back(block, target)

    def _start(self, index: int, blob: _Blob, block: int, steps: Iterator[Copy | _Command], reads: bool) -> None:
        try:
            current = next(steps)
            self._blobs[index] = blob
            self._moves[index] = _Move(blob, block, steps, current, reads)
        except _STORE_ERRORS:
            self._slab.free(block)
            raise
        except BaseException:  # an interrupt may come after a copy was issued, which uses the caller's memory
            self._copies.synchronize()
            self._moves.pop(index, None)
            if not blob.stored:  # no command of the store uses the block
                self._slab.free(block)
            raise

    def _advance(self, index: int, wait: bool = False, step: bool = False) -> bool:
        """Advance a blob as far as possible without waiting, to the end (``wait``), or by one ``step``, waiting for it.

        Frees its block when it is done. Return whether any step ended.
        """
        move = self._moves.get(index)
        if move is None:
            return False
        advanced = False
        try:
            while not (step and advanced):
                if wait or step:
                    move.current.wait()
                elif not move.current.is_done():
                    return advanced
                advanced = True
                if move.freed or not self._next_step(index, move):
                    break
            else:
                return True
        except _STORE_ERRORS as error:
            move.blob.error = without_frames(error)
        move.blob.filling = False
        del self._moves[index]
        self._slab.free(move.block)
        if move.freed:
            self._forget(index, move.blob)
        return True

    def _next_step(self, index: int, move: _Move) -> bool:
        """Begin the next step; return False if there is none."""
        try:
            move.current = next(move.steps)
        except StopIteration:
            return False
        except _STORE_ERRORS:
            raise
        except BaseException:  # such as an interrupt, before or after the device began to use the block
            move.blob.error = FastIOError(f"index {index}: its transfer was interrupted")
            del self._moves[index]  # the block is never reused
            self._copies.synchronize()
            raise
        return True

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
            self._store.free(index)

    def _blob(self, index: int) -> _Blob:
        blob = self._blobs.get(index)
        if blob is None:
            raise IndexError(f"index {index} is not in the staged store")
        return blob


def _whole_pages(nbytes: int) -> int:
    """Return the bytes of a block for ``nbytes``: a disk moves whole blocks itself, parts of one by way of the host."""
    return -(-nbytes // PAGE) * PAGE


def _raise_error(blob: _Blob) -> None:
    if blob.error is not None:
        blob.reported = True
        raise raisable_copy(blob.error)
