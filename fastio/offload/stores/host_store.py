"""The tier of host memory: blobs in one slab, pinned where they come from a GPU."""

from __future__ import annotations

import contextlib
import errno
from dataclasses import dataclass, field

from fastio.errors import FastIOError, TransferError
from fastio.offload.stores.arena import ArenaFullError
from fastio.offload.stores.copies import Copies, Ticket
from fastio.offload.stores.slab import Slab


@dataclass(slots=True)
class _Held:
    """A blob: its block, and the copies of it that were asked for."""

    block: int
    nbytes: int
    out: Ticket
    back: list[Ticket] = field(default_factory=list)
    told: bool = False  # the caller has heard that one failed: all were over then

    @property
    def is_over(self) -> bool:
        """Whether all its copies are, well or not."""
        return all(_is_over(ticket) for ticket in (self.out, *self.back))


class HostStore:
    """A store (see :class:`fastio.offload.stores.tiers.Store`) of at most ``nbytes`` bytes of host memory.

    Whole pages are counted. The memory is made, and pinned where ``copies`` ask for that, with the first write, and
    given back by ``close``. Not thread-safe: one lock around all calls.
    """

    def __init__(self, nbytes: int, copies: Copies) -> None:
        self._copies = copies
        self._slab = Slab(nbytes, copies.pinned)
        self._blobs: dict[int, _Held] = {}
        self._moving: set[int] = set()  # blobs with a copy that was not seen to be over
        self._leaving: list[tuple[Ticket, int]] = []  # blocks of freed blobs that are still being filled

    def write(self, index: int, address: int, nbytes: int) -> None:
        """Begin to copy a new blob in.

        ValueError if the index is taken, TransferError (ENOSPC) if there is no room, RefusedError if there is no memory
        or no copy.
        """
        if index in self._blobs:
            raise ValueError(f"index {index} is in the host store: free it first")
        block = self._block(index, nbytes)
        try:
            out = self._copies.out(address, block, nbytes)
        except FastIOError:
            self._slab.free(block)
            raise
        self._blobs[index] = _Held(block, nbytes, out)
        self._moving.add(index)

    def read(self, index: int, address: int, nbytes: int) -> None:
        """Begin to copy a blob's first ``nbytes`` back.

        IndexError if there is no such blob, ValueError if it is shorter, RefusedError if there is no copy, or was none
        of its write. A read that failed may be tried again once the caller was told.
        """
        blob = self._blob(index)
        if nbytes > blob.nbytes:
            raise ValueError(f"cannot read {nbytes} bytes of index {index}, which has {blob.nbytes}")
        target = self._copies.target(address, nbytes)
        blob.out.wait()  # other streams carry the copies back: they do not wait for this one
        if blob.told:
            blob.back, blob.told = [], False
        blob.back.append(self._copies.back(blob.block, target))
        self._moving.add(index)

    def update(self) -> int:
        """See which copies are over; the number of blobs that still move."""
        self._reap()
        for index in list(self._moving):
            if self._blobs[index].is_over:
                self._moving.discard(index)
        return len(self._moving) + len(self._leaving)

    def is_done(self, index: int) -> bool:
        """Whether no copy of this blob is under way. Raises the RefusedError that one ended with."""
        if not self._blob(index).is_over:
            return False
        self.wait(index)
        return True

    def wait(self, index: int) -> None:
        """Until no copy of this blob is under way. Raises the RefusedError that one ended with."""
        blob = self._blob(index)
        error = None
        for ticket in (blob.out, *blob.back):
            try:
                ticket.wait()
            except FastIOError as failure:
                error = error or failure
        self._moving.discard(index)
        if error is not None:
            blob.told = True
            raise error
        blob.back.clear()

    def free(self, index: int) -> None:
        """Forget a blob. IndexError if there is none.

        The memory of its reads is the caller's again: they are waited for. A write that is under way may still read
        from the caller's memory; its block is used again only when that is over.
        """
        blob = self._blob(index)
        for ticket in blob.back:
            with contextlib.suppress(FastIOError):
                ticket.wait()
        del self._blobs[index]
        self._moving.discard(index)
        self._leaving.append((blob.out, blob.block))
        self._reap()

    def room(self, nbytes: int) -> bool:
        """Whether a blob of that size can be written now."""
        self._reap()
        return self._slab.has_room(nbytes)

    def __contains__(self, index: int) -> bool:
        return index in self._blobs

    @property
    def nbytes(self) -> int:
        """How many bytes it may hold."""
        return self._slab.nbytes

    @property
    def used(self) -> int:
        """How many bytes blobs take, in whole pages, with those that are being freed."""
        return self._slab.used

    def close(self) -> None:
        """Wait for what is under way, forget all blobs, unpin the memory and give it back. Twice is fine."""
        for index in list(self._blobs):
            self.free(index)
        self._reap(wait=True)
        self._slab.close()

    def _blob(self, index: int) -> _Held:
        blob = self._blobs.get(index)
        if blob is None:
            raise IndexError(f"index {index} is not in the host store")
        return blob

    def _block(self, index: int, nbytes: int) -> int:
        self._reap()
        try:
            return self._slab.resident(nbytes)
        except ArenaFullError as full:
            if not self._leaving:
                doing = f"write of index {index}, {nbytes} bytes, into host memory of {full.nbytes} bytes"
                raise TransferError(
                    errno.ENOSPC, f"{doing} whose largest free run is {full.gap}", "host memory"
                ) from None
        self._reap(wait=True)
        return self._block(index, nbytes)

    def _reap(self, wait: bool = False) -> None:
        for leaving in list(self._leaving):
            ticket, block = leaving
            if _is_over(ticket, wait):
                self._leaving.remove(leaving)
                self._slab.free(block)


def _is_over(ticket: Ticket, wait: bool = False) -> bool:
    """Whether the copy is over, well or not."""
    try:
        if wait:
            ticket.wait()
        return ticket.is_done()
    except FastIOError:
        return True
