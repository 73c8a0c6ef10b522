"""The bytes of a layout's parts, piece by piece, in host memory."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fastio.engine.contiguous_chunks import packed
from fastio.formats.layout import NonContiguousTensor
from fastio.memory.raw_memory import storage_bytes, view
from fastio.transports.transport import Extent

Part = Extent | NonContiguousTensor

_PIECE = 8 << 20  # bytes; a file object may copy what it is given


def host_pieces(part: Part) -> Iterator[memoryview]:
    """The bytes of a part as the file has them, in order. A piece is valid until the next one.

    A piece of host memory is that memory itself, which another thread may change.
    """
    if isinstance(part, NonContiguousTensor):
        for piece in packed(part.tensor):
            yield view(piece.data_ptr(), piece.nbytes).toreadonly()
        return
    for start in range(0, part.nbytes, _PIECE):
        nbytes = min(_PIECE, part.nbytes - start)
        if part.device == "cpu":
            yield view(part.address + start, nbytes).toreadonly()
        else:
            storage: torch.UntypedStorage = part.owner
            at = part.address - storage.data_ptr() + start
            copy = storage_bytes(storage)[at : at + nbytes].cpu()
            yield view(copy.data_ptr(), nbytes).toreadonly()
