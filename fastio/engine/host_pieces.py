"""The bytes of a layout's parts in host memory, a piece at a time; writes those of tensors that are not contiguous."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from fastio._native import Control, crc32
from fastio.errors import RefusedError
from fastio.formats.layout import NonContiguousTensor, Part
from fastio.memory.contiguous_chunks import packed
from fastio.memory.raw_memory import storage_bytes, view
from fastio.volumes import views
from fastio.volumes.views import write_all

_PIECE = 8 << 20  # bytes; a file object may copy what it is given


def host_pieces(part: Part) -> Iterator[memoryview]:
    """The bytes of a part as the file has them, in order. A piece is valid until the next one.

    A piece of host memory is that memory itself, which another thread may change.
    """
    if isinstance(part, NonContiguousTensor):
        for chunk in packed(part.tensor):
            yield view(chunk.data_ptr(), chunk.nbytes).toreadonly()
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


def write_packed(
    tensors: Sequence[NonContiguousTensor], path: str, fd: int, control: Control
) -> tuple[dict[int, int], tuple[str, ...]]:
    """Write the tensors at their offsets, through the page cache, or to a namespace through host memory.

    Gives a CRC-32 by each tensor's offset in the file, and notes for the result.
    TransferError if the system refuses, RefusedError if the transfer is cancelled.
    """
    checksums: dict[int, int] = {}
    for tensor in tensors:
        at, checksum = tensor.offset, 0
        for piece in host_pieces(tensor):
            if control.cancelled:
                raise RefusedError(f"{path}: the transfer was cancelled")
            checksum = crc32(piece, checksum)
            write_all(path, fd, piece, at)
            at += len(piece)
            control.advance(len(piece))
        checksums[tensor.offset] = checksum
    if not tensors:
        return checksums, ()
    nbytes = sum(tensor.nbytes for tensor in tensors)
    on_namespace = (seen := views.of(fd)) is not None and seen.device.kind
    where = "in host memory" if on_namespace else "into the page cache"
    note = f"{len(tensors)} tensors of {nbytes} bytes were packed {where}: they are not contiguous"
    return checksums, (note,)
