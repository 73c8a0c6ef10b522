"""Defines :class:`Source`: what a format knows about a file to be loaded before any payload is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from fastio.errors import CorruptFileError
from fastio.memory.load_buffers import Region
from fastio.transports.transport import Span

StorageOf = Callable[[Region], torch.UntypedStorage]


class Source(NamedTuple):
    """The regions to fill, sorted by offset, and a function that builds the object from their storages.

    ``build(storage_of)`` is called after every region is filled and checked. ``checksummed``: regions carry CRCs.
    ``aligned``: each region begins at a multiple of its item size.

    ``confirm(span)`` compares derived offsets of regions with the headers in front of the bytes: in memory if a
    transport filled a span that includes the headers, else in the file. It returns None if the offsets are right, else
    a source with the right ones, which must be read instead. ``confirm`` is None if no offset was derived.

    ``damaged(region)`` is the error for a region whose bytes do not match its CRC; None for that of ``.pt``.
    """

    format: str
    regions: Sequence[Region]
    build: Callable[[StorageOf], Any]
    checksummed: bool
    confirm: Callable[[Span | None], Source | None] | None = None
    aligned: bool = False
    damaged: Callable[[Region], CorruptFileError] | None = None

    @property
    def nbytes(self) -> int:
        """The number of tensor bytes."""
        return sum(nbytes for _, _, nbytes, _, _ in self.regions)
