"""What a save fills: an :class:`fastio.files.atomic_file.AtomicFile`, or a data file of a distributed checkpoint."""

from __future__ import annotations

from typing import Protocol


class UncommittedFile(Protocol):
    """A file that is being made, empty and open for reading and writing, invisible until it is committed."""

    path: str

    @property
    def fd(self) -> int: ...

    def allocate(self, nbytes: int) -> None:
        """Set the size and reserve the blocks. TransferError if the system refuses."""

    def commit(self, durable: bool) -> None:
        """Make it visible. With ``durable``, it survives a power cut once this returns. TransferError if it cannot."""
