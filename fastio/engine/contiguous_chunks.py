"""Writes tensors that are not contiguous: copied to contiguous chunks, one at a time, so no second copy is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from fastio._native import Control, crc32_at
from fastio.errors import RefusedError
from fastio.files.full_write import write_all
from fastio.formats.layout import NonContiguousTensor
from fastio.memory.raw_memory import view

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


class Packed(NamedTuple):
    """What was packed: a CRC-32 by each tensor's offset in the file, and notes for the result."""

    checksums: dict[int, int]
    notes: tuple[str, ...]


def write_packed(tensors: Sequence[NonContiguousTensor], path: str, fd: int, control: Control) -> Packed:
    """Write the tensors at their offsets, through the page cache (chunks are not aligned).

    TransferError if the system refuses, RefusedError if the transfer is cancelled.
    """
    checksums: dict[int, int] = {}
    for offset, _, tensor in tensors:
        at, checksum = offset, 0
        for piece in packed(tensor):
            if control.cancelled:
                raise RefusedError(f"{path}: the transfer was cancelled")
            checksum = crc32_at(piece.data_ptr(), piece.nbytes, checksum)
            write_all(path, fd, view(piece.data_ptr(), piece.nbytes), at)
            at += piece.nbytes
            control.advance(piece.nbytes)
        checksums[offset] = checksum
    if not tensors:
        return Packed(checksums, ())
    nbytes = sum(tensor.nbytes for tensor in tensors)
    note = f"{len(tensors)} tensors of {nbytes} bytes were packed into the page cache: they are not contiguous"
    return Packed(checksums, (note,))
