"""Reads bytes of source tensors, piece by piece in their order, to where a chunk of the new file wants them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from fastio._native import crc32_at, crc32_combine
from fastio.memory.contiguous_chunks import packed
from fastio.memory.raw_memory import view
from fastio.models.conversion.source_tensors import Run, SourceFile, SourceTensor
from fastio.transports.transport import Extent


class Piece(NamedTuple):
    """``nbytes`` bytes of a tensor from its byte ``start`` on, wanted at ``address``."""

    tensor: SourceTensor
    start: int
    nbytes: int
    address: int


class _RunPart(NamedTuple):
    run: Run
    extent: Extent
    piece: int


class TensorReads:
    """Reads pieces: those of one tensor in their order, without a gap."""

    def __init__(self) -> None:
        self._packing: dict[str, _Packing] = {}

    def read(self, pieces: Sequence[Piece]) -> list[int]:
        """Fill the memory of pieces; return a CRC-32 for each.

        Every run that ends here is compared with its CRC-32: CorruptFileError names the tensor and the file.
        """
        crcs = [0] * len(pieces)
        parts: list[_RunPart] = []
        for index, piece in enumerate(pieces):
            if piece.tensor.whole is None:
                parts += _run_parts(piece, index)
            else:
                crcs[index] = self._pack(piece)
        for part, value in zip(parts, _values(parts), strict=True):  # in the order of the tensors' bytes
            part.run.take(value, part.extent.nbytes)
            crcs[part.piece] = crc32_combine(crcs[part.piece], value, part.extent.nbytes)
        return crcs

    def _pack(self, piece: Piece) -> int:
        tensor = piece.tensor
        if tensor.name not in self._packing:
            assert tensor.whole is not None
            self._packing[tensor.name] = _Packing(tensor.whole())
        self._packing[tensor.name].take(piece.address, piece.nbytes)
        if piece.start + piece.nbytes == tensor.nbytes:
            del self._packing[tensor.name]
        return crc32_at(piece.address, piece.nbytes)


class _Packing:
    """The elements of a tensor in memory, row by row, as bytes."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._chunks = packed(tensor)
        self._rest = memoryview(b"")

    def take(self, address: int, nbytes: int) -> None:
        """Copy the next bytes to an address."""
        target = view(address, nbytes)
        while target:
            if not self._rest:
                chunk = next(self._chunks)
                self._rest = view(chunk.data_ptr(), chunk.nbytes)
            count = min(len(target), len(self._rest))
            target[:count] = self._rest[:count]
            target, self._rest = target[count:], self._rest[count:]


def _run_parts(piece: Piece, index: int) -> Iterator[_RunPart]:
    """The parts of a tensor's runs that a piece consists of."""
    tensor = piece.tensor
    starts = (0,) if len(tensor.runs) == 1 else tensor.starts()
    at, end = piece.start, piece.start + piece.nbytes
    number = bisect_right(starts, at) - 1
    while at < end:
        run, begin = tensor.runs[number], starts[number]
        stop = min(end, begin + run.nbytes)
        address = piece.address + at - piece.start
        yield _RunPart(
            run, Extent(run.offset + at - begin, stop - at, address, True, "cpu", tensor, tensor.name), index
        )
        at = stop
        number += 1


def _values(parts: Sequence[_RunPart]) -> list[int]:
    """Read parts; return the CRC-32 of each."""
    values = [0] * len(parts)
    by_file: dict[SourceFile, list[int]] = {}
    for index, part in enumerate(parts):
        by_file.setdefault(part.run.file, []).append(index)
    for file, indices in by_file.items():
        left = sorted(indices, key=lambda index: parts[index].extent.offset)
        while left:  # tensors that overlap in the file are read one after the other
            apart, rest, end = [], [], 0
            for index in left:
                extent = parts[index].extent
                if extent.offset >= end:
                    apart.append(index)
                    end = extent.offset + extent.nbytes
                else:
                    rest.append(index)
            for index, value in zip(apart, file.read([parts[index].extent for index in apart]), strict=True):
                values[index] = value
            left = rest
    return values
