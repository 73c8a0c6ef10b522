"""CRC-32 of extents, computed window by window in file order, and the patches that store them. All sizes are bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fastio._native import crc32_at
from fastio.backends._windows import Window
from fastio.errors import RefusedError
from fastio.transports.transport import Extent, Patch

_PATCH_BYTES = 4


class Buffer(Protocol):
    """Host memory: its address and a view of its bytes."""

    @property
    def address(self) -> int: ...

    @property
    def view(self) -> memoryview: ...


class Checksums:
    """Running checksums. ``values`` has one per extent, 0 where neither the extent nor a patch needs it.

    Raises RefusedError for a patch that lies before the end of the extent it describes.
    """

    def __init__(self, extents: Sequence[Extent], patches: Sequence[Patch] = ()) -> None:
        self._extents = extents
        self._patches = sorted(patches)
        self._next = 0
        described = {patch.extent for patch in patches}
        self._wanted = [extent.checksum or index in described for index, extent in enumerate(extents)]
        self.values = [0] * len(extents)
        for patch in patches:
            if patch.offset < extents[patch.extent].offset + extents[patch.extent].nbytes:
                raise RefusedError(f"the patch at offset {patch.offset} lies before the end of what it describes")

    def take(self, window: Window, begin: int, buffer: Buffer) -> None:
        """Apply the patches in a window, then update its checksums; ``buffer`` holds the file from ``begin`` on.

        A patch may lie across two windows.
        """
        first = self._next
        for piece in window.pieces:
            at = first
            while at < len(self._patches) and self._patches[at].offset < piece.end:
                patch = self._patches[at]
                if patch.offset + _PATCH_BYTES > piece.offset:
                    self._apply(patch, piece.offset, piece.end, begin, buffer.view)
                at += 1
            while first < len(self._patches) and self._patches[first].offset + _PATCH_BYTES <= piece.end:
                first += 1
            if self._wanted[piece.extent]:
                address = buffer.address + piece.offset - begin
                self.values[piece.extent] = crc32_at(address, piece.nbytes, self.values[piece.extent])
        self._next = first

    def result(self) -> list[int]:
        """The requested checksums, 0 elsewhere."""
        return [value if extent.checksum else 0 for value, extent in zip(self.values, self._extents, strict=True)]

    def _apply(self, patch: Patch, low: int, high: int, begin: int, memory: memoryview) -> None:
        value = self.values[patch.extent].to_bytes(_PATCH_BYTES, "little")
        for number, byte in enumerate(value):
            at = patch.offset + number
            if low <= at < high:
                memory[at - begin] = byte
