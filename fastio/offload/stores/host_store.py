"""The host memory tier: blobs in one slab, pinned if they come from a GPU."""

from __future__ import annotations

import contextlib
import errno
from dataclasses import dataclass, field

from fastio.errors import FastIOError, TransferError
from fastio.offload.stores.arena import ArenaFullError
from fastio.offload.stores.copies import Copies, Copy
from fastio.offload.stores.slab import Slab


@dataclass(slots=True)
class _Blob:
    """A blob: its block, and its copies."""

    block: int
    nbytes: int
    out: Copy
    back: list[Copy] = field(default_factory=list)
    reported: bool = False  # an error was raised to the caller; all copies had ended then

    @property
    def is_over(self) -> bool:
        """Whether all its copies ended, with or without an error."""
        return all(_is_over(copy) for copy in (self.out, *self.back))


class HostStore:
    """A store (see :class:`fastio.offload.stores.tiers.Store`) in at most ``nbytes`` bytes of host memory.

    Counts whole pages. The memory is allocated, and pinned if ``copies`` need that, at the first write, and freed by
    ``close``. Not thread-safe: use one lock around all calls.
    """

    def __init__(self, nbytes: int, copies: Copies) -> None:
        self._copies = copies
        self._slab = Slab(nbytes, copies.pin_for)
        self._blobs: dict[int, _Blob] = {}
        self._copying: set[int] = set()  # blobs with a copy that may be pending
        self._freed_in_flight: list[tuple[Copy, int]] = []  # blocks of freed blobs whose write is pending

    def write(self, index: int, address: int, nbytes: int) -> None:
        """Begin to copy a new blob in.

        ValueError if the index is taken, TransferError (ENOSPC) if there is no room, RefusedError if the memory or the
        copy is refused.
        """
        if index in self._blobs:
            raise ValueError(f"index {index} is in the host store: free it first")
        block = self._block(index, nbytes)
        try:
            out = self._copies.out(address, block, nbytes)
        except FastIOError:
            self._slab.free(block)
            raise
        self._blobs[index] = _Blob(block, nbytes, out)
        self._copying.add(index)

    def read(self, index: int, address: int, nbytes: int) -> None:
        """Begin to copy a blob's first ``nbytes`` back.

        IndexError if there is no such blob, ValueError if it is shorter, RefusedError if the copy is refused or its
        write failed. A failed read may be retried once its error was raised.
        """
        blob = self._blob(index)
        if nbytes > blob.nbytes:
            raise ValueError(f"cannot read {nbytes} bytes of index {index}, which has {blob.nbytes}")
        target = self._copies.target(address, nbytes)
        blob.out.wait()  # copies back run on other streams, which do not wait for this one
        if blob.reported:
            blob.back, blob.reported = [], False
        blob.back.append(self._copies.back(blob.block, target))
        self._copying.add(index)

    def update(self) -> int:
        """Check which copies are done; return how many blobs are still being copied."""
        self._reap()
        for index in list(self._copying):
            if self._blobs[index].is_over:
                self._copying.discard(index)
        return len(self._copying) + len(self._freed_in_flight)

    def is_done(self, index: int) -> bool:
        """Return whether no copy of this blob is pending. Raises the RefusedError of a failed one."""
        if not self._blob(index).is_over:
            return False
        self.wait(index)
        return True

    def wait(self, index: int) -> None:
        """Wait until no copy of this blob is pending. Raises the RefusedError of a failed one."""
        blob = self._blob(index)
        error = None
        for copy in (blob.out, *blob.back):
            try:
                copy.wait()
            except FastIOError as failure:
                error = error or failure
        self._copying.discard(index)
        if error is not None:
            blob.reported = True
            raise error
        blob.back.clear()

    def free(self, index: int) -> None:
        """Free a blob. IndexError if there is none.

        Waits for its reads, so the caller may reuse their memory. A pending write may still read the caller's memory;
        its block is reused only after that.
        """
        blob = self._blob(index)
        for copy in blob.back:
            with contextlib.suppress(FastIOError):
                copy.wait()
        del self._blobs[index]
        self._copying.discard(index)
        self._freed_in_flight.append((blob.out, blob.block))
        self._reap()

    def room(self, nbytes: int) -> bool:
        """Return whether a blob of that size can be written now."""
        self._reap()
        return self._slab.has_room(nbytes)

    def __contains__(self, index: int) -> bool:
        return index in self._blobs

    @property
    def nbytes(self) -> int:
        """The capacity in bytes."""
        return self._slab.nbytes

    @property
    def used(self) -> int:
        """Bytes in use, in whole pages, including blobs that are being freed."""
        return self._slab.used

    def close(self) -> None:
        """Wait for pending copies, free all blobs, unpin and free the memory. May be called twice."""
        for index in list(self._blobs):
            self.free(index)
        self._reap(wait=True)
        self._slab.close()

    def _blob(self, index: int) -> _Blob:
        blob = self._blobs.get(index)
        if blob is None:
            raise IndexError(f"index {index} is not in the host store")
        return blob

    def _block(self, index: int, nbytes: int) -> int:
        self._reap()
        try:
            return self._slab.resident(nbytes)
        except ArenaFullError as full:
            if not self._freed_in_flight:
                doing = f"write of index {index}, {nbytes} bytes, into host memory of {full.nbytes} bytes"
                raise TransferError(
                    errno.ENOSPC, f"{doing} whose largest free run is {full.gap}", "host memory"
                ) from None
        self._reap(wait=True)
        return self._block(index, nbytes)

    def _reap(self, wait: bool = False) -> None:
        for freed in list(self._freed_in_flight):
            copy, block = freed
            if _is_over(copy, wait):
                self._freed_in_flight.remove(freed)
                self._slab.free(block)


def _is_over(copy: Copy, wait: bool = False) -> bool:
    """Return whether the copy ended, with or without an error."""
    try:
        if wait:
            copy.wait()
        return copy.is_done()
    except FastIOError:
        return True
