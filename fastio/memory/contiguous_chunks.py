"""The elements of a tensor that is not contiguous, as contiguous chunks: no second copy of it is made."""

from __future__ import annotations

from collections.abc import Iterator

import torch

_PIECE = 8 << 20  # bytes; two pieces are in memory at a time


def packed(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The elements of a tensor of any shape, strides and device, in row-major order: contiguous chunks on the host.

    A chunk is valid until the next one.
    """
    room = torch.empty(min(tensor.nbytes, _PIECE), dtype=torch.uint8, device="cpu")
    for part in _parts(tensor):
        piece = room[: part.nbytes].view(part.dtype).view(part.shape)
        # clone() first: torch transposes a dense tensor four times as fast as a part of a matrix.
        yield piece.copy_(part.clone())


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if tensor.nbytes <= _PIECE:
        yield tensor
        return
    rows = max(1, _PIECE * len(tensor) // tensor.nbytes)
    for part in tensor.split(rows):
        yield from _parts(part[0] if len(part) == 1 else part)
