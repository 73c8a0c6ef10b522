"""Defines :class:`Source`: what a format knows about a file to be loaded before any payload is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from fastio.errors import CorruptFileError, FastIOError, shortened
from fastio.formats.detect import PT
from fastio.memory.load_buffers import Region
from fastio.transports.transport import Span

StorageOf = Callable[[Region], torch.UntypedStorage]


class Source(NamedTuple):
    """The regions to fill, sorted by offset, and a function that builds the object from their storages.

    ``build(storage_of)`` is called after every region is filled and checked. ``aligned``: each region begins at a
    multiple of its item size.

    ``confirm(span)`` compares derived offsets of regions with the headers in front of the bytes: in memory if a
    transport filled a span that includes the headers, else in the file. It returns None if the offsets are right, else
    a source with the right ones, which must be read instead. ``confirm`` is None if no offset was derived.

    ``damaged(region)`` is the error for a region whose bytes do not match its CRC; None if there are no CRCs.
    """

    format: str
    regions: Sequence[Region]
    build: Callable[[StorageOf], Any]
    confirm: Callable[[Span | None], Source | None] | None = None
    aligned: bool = False
    damaged: Callable[[Region], CorruptFileError] | None = None

    def make(self, path: str, storage_of: StorageOf) -> Any:
        """Build the object. CorruptFileError names ``path`` if the file's shapes cannot be tensors."""
        if self.format == PT:
            return self.build(storage_of)
        try:
            return self.build(storage_of)
        except (RuntimeError, OverflowError, ValueError, TypeError) as error:  # torch's versions raise different ones
            if isinstance(error, FastIOError):
                raise
            said = shortened(str(error).partition("\n")[0])  # what follows are frames of torch's C++
            raise CorruptFileError(path, None, f"its shapes cannot be tensors: {said}") from None

    def check(self, values: Sequence[int]) -> None:
        """Compare the CRC-32s of the regions that were read with the file's. CorruptFileError names a region."""
        for region, value in zip(self.regions, values, strict=True):
            if value != region.crc and self.damaged is not None:
                raise self.damaged(region)

    @property
    def checksummed(self) -> bool:
        """Whether the regions carry CRCs."""
        return self.damaged is not None

    @property
    def nbytes(self) -> int:
        """The number of tensor bytes."""
        return sum(nbytes for _, _, nbytes, _, _ in self.regions)
