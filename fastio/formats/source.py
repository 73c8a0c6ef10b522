"""What a format knows about a file that is to be loaded, before any payload is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from fastio.memory.load_buffers import Region
from fastio.transports.transport import Span

StorageOf = Callable[[Region], torch.UntypedStorage]


class Source(NamedTuple):
    """Regions to be filled, sorted by offset, and how the object is made of their storages.

    ``build(storage_of)`` is called once every region is filled and checked. ``checksummed`` says whether regions carry
    CRCs, ``aligned`` that each begins at a multiple of its numbers' size.

    ``confirm(span)`` compares the regions' offsets with the headers in front of the bytes, where the offsets were
    derived: in memory where a transport filled a span, header and all, else in the file. It gives None if they are
    right, else the source with the right ones, which is to be read instead. ``confirm`` is None where no offset was
    derived.
    """

    format: str
    regions: Sequence[Region]
    build: Callable[[StorageOf], Any]
    checksummed: bool
    confirm: Callable[[Span | None], Source | None] | None = None
    aligned: bool = False

    @property
    def nbytes(self) -> int:
        """Tensor bytes."""
        return sum(nbytes for _, _, nbytes, _, _ in self.regions)
