"""GPU memory on a store that reaches host memory only: every blob passes through a slab of pinned memory.

A write is a copy to the slab and then a write of the store below; a read is a read of that store and then a copy back.
Nothing moves behind one's back: ``update``, ``is_done`` and ``wait`` take each blob from one to the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastio.errors import FastIOError
from fastio.offload.stores.arena import ArenaFullError
from fastio.offload.stores.copies import Copies, Target, Ticket
from fastio.offload.stores.slab import Slab
from fastio.offload.stores.store_errors import again, without_frames
from fastio.offload.stores.tiers import Store

_REFUSALS = (FastIOError, OSError)


@dataclass(slots=True)
class _Blob:
    nbytes: int
    below: bool = False  # the store below knows the index
    written: bool = False  # and has all its bytes
    filling: bool = False  # the caller's memory is being written
    error: Exception | None = None  # what the last command ended with
    told: bool = False  # the caller has heard of it


@dataclass(slots=True)
class _Command:
    """The store below at work on an index."""

    store: Store
    index: int

    def is_done(self) -> bool:
        return self.store.is_done(self.index)

    def wait(self) -> None:
        self.store.wait(self.index)


@dataclass(slots=True)
class _Move:
    """One blob on its way through its block of the slab: ``now`` is under way, ``then`` does what follows."""

    blob: _Blob
    block: int
    then: Iterator[Ticket | _Command]
    now: Ticket | _Command
    freed: bool = False  # nobody waits for it any more


class StagedStore:
    """A store (:class:`~fastio.offload.stores.tiers.Store`) for the addresses that ``copies`` reach, over another one.

    ``nbytes`` of slab bound how much moves at a time: a command for which there is no room waits for the oldest ones. A
    blob that is larger than the slab makes it grow. The memory is made with the first command and given back by
    ``close``, which leaves the store below open. A store below whose ``wants_map`` is true has it mapped, so that its
    devices reach it without a copy. Not thread-safe: one lock around all calls.
    """

    def __init__(self, store: Store, copies: Copies, nbytes: int) -> None:
        self._store = store
        self._copies = copies
        mapper: Any = store if getattr(store, "wants_map", False) else None
        self._slab = Slab(nbytes, copies.pinned, mapper)
        self._blobs: dict[int, _Blob] = {}
        self._moves: dict[int, _Move] = {}  # by index, the oldest first

    def write(self, index: int, address: int, nbytes: int) -> None:
        """Begin to write a new blob.

        ValueError if the index is taken, RefusedError if there is no memory or no copy. What the store below refuses
        is told by ``is_done`` and ``wait``.
        """
        if index in self._blobs:
            raise ValueError(f"index {index} is in the staged store: free it first")
        self._settle(index)  # what was freed under this index
        blob = _Blob(nbytes)
        block = self._block(nbytes)
        self._start(index, blob, block, self._writing(index, blob, block, address))
        self._blobs[index] = blob

    def read(self, index: int, address: int, nbytes: int) -> None:
        """Begin to read a blob's first ``nbytes``, after what is under way of it.

        IndexError if there is no such blob, ValueError if it is shorter. What its write ended with if that failed, and
        what an earlier read ended with if nobody was told: then it may be tried again.
        """
        blob = self._blob(index)
        if nbytes > blob.nbytes:
            raise ValueError(f"cannot read {nbytes} bytes of index {index}, which has {blob.nbytes}")
        target = self._copies.target(address, nbytes)
        self._settle(index)
        if not (blob.told and blob.written):
            _tell(blob)
        blob.error, blob.told = None, False
        block = self._block(nbytes)
        self._start(index, blob, block, self._reading(index, blob, block, target))

    def update(self) -> int:
        """Take every blob as far as it can go without waiting; the number of those that still move."""
        for index in list(self._moves):
            self._advance(index)
        self._store.update()
        return len(self._moves)

    def is_done(self, index: int) -> bool:
        """Whether nothing of this blob is under way. Raises what its last command ended with."""
        blob = self._blob(index)
        self._advance(index)
        if index in self._moves:
            return False
        _tell(blob)
        return True

    def wait(self, index: int) -> None:
        """Until nothing of this blob is under way. Raises what its last command ended with."""
        blob = self._blob(index)
        self._settle(index)
        _tell(blob)

    def free(self, index: int) -> None:
        """Forget a blob, whatever is under way. IndexError if there is none.

        The memory of its reads is the caller's again: a copy back is waited for. A write that is under way may still
        read from the caller's memory.
        """
        blob = self._blob(index)
        del self._blobs[index]
        move = self._moves.get(index)
        if move is None:
            self._forget(index, blob)
            return
        move.freed = True
        if blob.filling:
            self._settle(index)

    def __contains__(self, index: int) -> bool:
        return index in self._blobs

    @property
    def stats(self) -> Any:
        """Those of the store below, if it has any."""
        return getattr(self._store, "stats", None)

    @property
    def used(self) -> int:
        """Bytes of the slab in use."""
        return self._slab.used

    def close(self) -> None:
        """Wait for what is under way, free all blobs below, unpin the slab and give it back. Twice is fine."""
        for index in list(self._blobs):
            self.free(index)
        for index in list(self._moves):
            self._settle(index)
        self._slab.close()

    def _writing(self, index: int, blob: _Blob, block: int, address: int) -> Iterator[Ticket | _Command]:
        yield self._copies.out(address, block, blob.nbytes)
        self._store.write(index, block, blob.nbytes)
        blob.below = True
        yield _Command(self._store, index)
        blob.written = True

    def _reading(self, index: int, blob: _Blob, block: int, target: Target) -> Iterator[Ticket | _Command]:
        self._store.read(index, block, target.nbytes)
        yield _Command(self._store, index)
        blob.filling = True
        yield self._copies.back(block, target)

    def _start(self, index: int, blob: _Blob, block: int, then: Iterator[Ticket | _Command]) -> None:
        try:
            self._moves[index] = _Move(blob, block, then, next(then))
        except _REFUSALS:
            self._slab.free(block)
            raise

    def _advance(self, index: int, wait: bool = False) -> None:
        """Take a blob as far as it can go without waiting, or all the way; then its block is free again."""
        move = self._moves.get(index)
        if move is None:
            return
        try:
            while True:
                if wait:
                    move.now.wait()
                elif not move.now.is_done():
                    return
                if move.freed or not self._go_on(index, move):
                    break
        except _REFUSALS as error:
            move.blob.error = without_frames(error)
        move.blob.filling = False
        del self._moves[index]
        self._slab.free(move.block)
        if move.freed:
            self._forget(index, move.blob)

    def _go_on(self, index: int, move: _Move) -> bool:
        """Do what follows; False where nothing does."""
        try:
            move.now = next(move.then)
        except StopIteration:
            return False
        except _REFUSALS:
            raise
        except BaseException:  # an interrupt, say: it may have come before or after the device began to use the block
            move.blob.error = FastIOError(f"index {index}: its transfer was broken off")
            del self._moves[index]  # and the block is nobody's for ever
            raise
        return True

    def _settle(self, index: int) -> None:
        self._advance(index, wait=True)

    def _block(self, nbytes: int) -> int:
        while True:
            try:
                return self._slab.ephemeral(nbytes)
            except ArenaFullError:
                if self._moves:
                    self._settle(next(iter(self._moves)))
                else:
                    self._slab.grow(nbytes)

    def _forget(self, index: int, blob: _Blob) -> None:
        if blob.below:
            self._store.free(index)

    def _blob(self, index: int) -> _Blob:
        blob = self._blobs.get(index)
        if blob is None:
            raise IndexError(f"index {index} is not in the staged store")
        return blob


def _tell(blob: _Blob) -> None:
    if blob.error is not None:
        blob.told = True
        raise again(blob.error)
