"""Puts a tensor together whose stored parts are not whole rows of it, such as columns, a strip at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from math import prod

import torch

from fastio._native import Control, crc32_combine
from fastio.models.conversion.source_tensors import Run, SourceFile
from fastio.transports.transport import Extent

_STRIP = 16 << 20  # bytes; twice that, and a cache line for each part, is in memory
_ALIGNMENT = 64


class WovenPart:
    """A part of a tensor, which lies in a file as the ``run``: ``size`` elements from the index ``begin`` on."""

    def __init__(self, begin: tuple[int, ...], size: tuple[int, ...], run: Run) -> None:
        self.begin = begin
        self.size = size
        self.run = run
        self._crc = self._done = 0

    def took(self, crc: int, nbytes: int) -> None:
        """Count ``nbytes`` that were read behind those before, and compare all of the run if they were its last ones.

        Raises as :meth:`Run.compare` does.
        """
        self._crc = crc32_combine(self._crc, crc, nbytes) if self._done else crc
        self._done += nbytes
        if self._done == self.run.nbytes:
            self.run.compare(self._crc)


def woven(shape: Sequence[int], itemsize: int, parts: Sequence[WovenPart]) -> Iterator[torch.Tensor]:
    """The bytes of a tensor, row by row, whose parts fill it: uint8 of one dimension, valid until the next one.

    Each part's bytes are read once, in their order, and compared with their CRC-32 when the last of them were read.
    """
    *outer, last = shape
    full = (*outer, last * itemsize)  # in bytes from here on
    axis = next(axis for axis in range(len(full)) if prod(full[axis + 1 :]) <= _STRIP)
    width = prod(full[axis + 1 :])
    count = min(_STRIP // width, full[axis])
    strip = torch.empty(count * width, dtype=torch.uint8)
    room = torch.empty(count * width + _ALIGNMENT * len(parts), dtype=torch.uint8)
    boxes = [_Bytes(part, itemsize, axis) for part in parts]
    for prefix in itertools.product(*map(range, full[:axis])):
        for begin in range(0, full[axis], count):
            rows = min(count, full[axis] - begin)
            pieces, at = [], 0
            for box in boxes:
                piece = box.piece(prefix, begin, begin + rows, at)
                if piece is not None:
                    pieces.append(piece)
                    at += -(-piece.nbytes // _ALIGNMENT) * _ALIGNMENT
            _read(pieces, room)
            target = strip[: rows * width]
            for piece in pieces:
                piece.copy_to(target.view(rows, *full[axis + 1 :]), begin, room)
            yield target


class _Bytes:
    """A part whose last dimension counts bytes, of which strips along ``axis`` are read."""

    def __init__(self, part: WovenPart, itemsize: int, axis: int) -> None:
        self.part = part
        self.begin = (*part.begin[:-1], part.begin[-1] * itemsize)
        size = (*part.size[:-1], part.size[-1] * itemsize)
        self.outer, self.rows, self.inner = size[:axis], size[axis], size[axis + 1 :]
        self.axis = axis

    def piece(self, prefix: tuple[int, ...], begin: int, end: int, at: int) -> _Piece | None:
        """What the part has of a strip; None if it has nothing."""
        axis, number = self.axis, 0
        for index, first, size in zip(prefix, self.begin, self.outer, strict=False):
            if not first <= index < first + size:
                return None
            number = number * size + index - first
        low, high = max(begin, self.begin[axis]), min(end, self.begin[axis] + self.rows)
        if low >= high:
            return None
        offset = (number * self.rows + low - self.begin[axis]) * prod(self.inner)
        return _Piece(self, low, high, offset, at)


class _Piece:
    """Rows ``low`` to ``high`` of a part, from its byte ``offset`` on, which are read to byte ``at`` of the room."""

    def __init__(self, box: _Bytes, low: int, high: int, offset: int, at: int) -> None:
        self.box = box
        self.low, self.high = low, high
        self.offset = box.part.run.offset + offset
        self.nbytes = (high - low) * prod(box.inner)
        self.at = at

    def copy_to(self, strip: torch.Tensor, begin: int, room: torch.Tensor) -> None:
        """Copy the bytes to where they belong in a strip that begins with the row ``begin``."""
        axis, inner = self.box.axis, self.box.inner
        target = strip[self.low - begin : self.high - begin]
        for dimension, (at, size) in enumerate(zip(self.box.begin[axis + 1 :], inner, strict=True), 1):
            target = target.narrow(dimension, at, size)
        target.copy_(room[self.at : self.at + self.nbytes].view(self.high - self.low, *inner))


def _read(pieces: Sequence[_Piece], room: torch.Tensor) -> None:
    by_file: dict[SourceFile, list[_Piece]] = {}
    for piece in pieces:
        by_file.setdefault(piece.box.part.run.file, []).append(piece)
    for file, own in by_file.items():
        own.sort(key=lambda piece: piece.offset)
        extents = [
            Extent(p.offset, p.nbytes, room.data_ptr() + p.at, True, "cpu", room, p.box.part.run.name) for p in own
        ]
        for piece, crc in zip(own, file.read(extents, Control()), strict=True):
            piece.box.part.took(crc, piece.nbytes)
