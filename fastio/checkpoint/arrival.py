"""A snapshot that is written while it is still being copied: how far it has come."""

from __future__ import annotations

import bisect
import threading
from types import TracebackType

from fastio._native import Control
from fastio.errors import CheckpointError
from fastio.formats.layout import Layout

_ALL = 2**64 - 1


class Arrival:
    """The :class:`fastio.saving.Arriving` of a snapshot: memory that is filled from its lowest address on.

    Used as a context by who fills it: when that ends, all is there, or if by an exception, never will be.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reached = 0
        self._is_broken = False
        self._over = threading.Event()
        self._following: tuple[Control, Layout] | None = None

    def reach(self, address: int) -> None:
        """What lies below ``address`` is there."""
        with self._lock:
            self._reached = max(self._reached, address)
            self._tell()

    def follow(self, control: Control, layout: Layout) -> None:
        """See :class:`fastio.saving.Arriving`."""
        with self._lock:
            self._following = control, layout
            self._tell()
        self.require()

    def wait(self) -> None:
        """See :class:`fastio.saving.Arriving`."""
        self._over.wait()
        self.require()

    def require(self) -> None:
        """See :class:`fastio.saving.Arriving`."""
        if self._is_broken:
            raise CheckpointError("the save was interrupted before all of the state was copied")

    def __enter__(self) -> Arrival:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._is_broken = kind is not None
            if not self._is_broken:
                self._reached = _ALL
            self._tell()
        self._over.set()

    def _tell(self) -> None:
        if self._following is None:
            return
        control, layout = self._following
        if self._is_broken:
            control.cancel()
        else:
            control.ready = ready(layout, self._reached)


def ready(layout: Layout, reached: int) -> int:
    """How many bytes of a file are there, from its first on, if of its storages what lies below an address is.

    Storages lie in the file in the order of their addresses; the file's own bytes are always there.
    """
    storages = [extent for extent in layout.extents if extent.checksum]
    ends = [extent.address + extent.nbytes for extent in storages]
    at = bisect.bisect_right(ends, reached)
    if at == len(storages):
        return _ALL
    return storages[at].offset + max(0, reached - storages[at].address)
