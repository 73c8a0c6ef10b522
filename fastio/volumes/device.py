"""The protocol of the devices that volumes lie on. All offsets and sizes are bytes."""

from __future__ import annotations

from typing import Final, Protocol

BLOCK: Final = 4096
"""Bytes of a volume's block. Devices have blocks of this size or of a part of it."""


class Device(Protocol):
    """Where the blocks of a volume lie: a file, or an NVMe namespace. ``name`` is what errors call it.

    ``kind`` is the tool that drives a namespace; empty for a file, whose bytes the tools of files move.

    Offsets and sizes are multiples of :data:`BLOCK`. Methods raise :class:`fastio.errors.TransferError`, which names
    the device and the offset, and return only when all bytes have moved. What was written before a ``flush`` that
    returned survives a power cut; what was not flushed may, or in part, and in any order.
    """

    name: str
    kind: str
    nbytes: int

    def read(self, offset: int, nbytes: int) -> bytes: ...

    def write(self, offset: int, data: bytes | memoryview) -> None: ...

    def flush(self) -> None: ...

    def lock(self, wait_seconds: float) -> None:
        """Become the only writer until the device is closed. VolumeInUseError if there is another one for so long."""

    def close(self) -> None: ...

    def discard(self) -> None:
        """Close the device of a volume that could not be made; a file that was made for it is removed."""
