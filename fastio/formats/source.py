"""What a format knows about a file that is to be loaded, before any payload is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from fastio.landing import Region
from fastio.transport import Span

StorageOf = Callable[[Region], torch.UntypedStorage]
Wait = Callable[[], object]


class Source(NamedTuple):
    """Regions to be filled, sorted by offset, and how the object is made of their storages.

    ``build(storage_of, wait)`` may run while the storages are still being filled; before it looks at their bytes it
    calls ``wait``. ``confirm(span)`` looks once more at what was only assumed about the file's layout, when the bytes
    are in memory; None if nothing was.
    ``checksummed`` says whether regions carry CRCs, ``aligned`` that each begins at a multiple of its numbers' size.
    """

    format: str
    regions: Sequence[Region]
    build: Callable[[StorageOf, Wait], Any]
    checksummed: bool
    confirm: Callable[[Span], bool] | None = None
    aligned: bool = False

    @property
    def nbytes(self) -> int:
        """Tensor bytes."""
        return sum(region.nbytes for region in self.regions)
