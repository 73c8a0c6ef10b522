"""Puts a tensor together whose stored parts are not whole rows of it, such as columns, a strip at a time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastio._native import Control, Mapping, crc32_combine
from fastio.memory.raw_memory import view
from fastio.models.conversion.source_tensors import Run, SourceFile
from fastio.runtime.native_errors import translate_native_errors
from fastio.transports.transport import Extent

_STRIP = 32 << 20  # bytes; twice that, and a cache line for each part, is in memory
_READERS = 4  # files that are read at the same time: each has a small part of a strip
_LINE = 64  # bytes; each part begins in a cache line of its own
Words = npt.NDArray[np.unsignedinteger[Any]]


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
    """The bytes of a tensor, row by row, whose parts fill it: integers of one dimension, valid until the next ones.

    Each part's bytes are read once, in their order, and compared with their CRC-32 when the last of them were read.
    """
    *outer, last = shape
    edges = (edge * itemsize for part in parts for edge in (part.begin[-1], part.size[-1]))
    unit = math.gcd(8, *edges)
    full = (*outer, last * itemsize // unit)
    axis = next(axis for axis in range(len(full)) if math.prod(full[axis + 1 :]) * unit <= _STRIP)
    width = math.prod(full[axis + 1 :])
    count = min(_STRIP // (width * unit), full[axis])
    # numpy copies on this thread. torch would share the copy with threads that compete with those of the transports.
    nbytes = count * width * unit
    with translate_native_errors(parts[0].run.file.path):
        memory = Mapping(2 * nbytes + _LINE * (len(parts) + 1), used=True)
    strip = np.frombuffer(view(memory.address, nbytes), f"u{unit}")
    start = -(-nbytes // _LINE) * _LINE
    room = np.frombuffer(view(memory.address + start, memory.nbytes - start), f"u{unit}")
    words = [_Words(part, itemsize, unit, axis) for part in parts]
    with ThreadPoolExecutor(_READERS) as readers:
        for prefix in itertools.product(*map(range, full[:axis])):
            for begin in range(0, full[axis], count):
                rows = min(count, full[axis] - begin)
                pieces = _pieces(words, prefix, begin, begin + rows)
                _read(pieces, room, readers)
                target = strip[: rows * width]
                for piece in pieces:
                    piece.copy_to(target.reshape(rows, *full[axis + 1 :]), begin, room)
                yield torch.from_numpy(target)


def _pieces(words: Sequence[_Words], prefix: tuple[int, ...], begin: int, end: int) -> list[_Piece]:
    """What the parts have of the rows from ``begin`` to ``end`` of a strip."""
    pieces, at = [], 0
    for one in words:
        piece = one.piece(prefix, begin, end, at)
        if piece is not None:
            pieces.append(piece)
            at += -(-piece.nbytes // _LINE) * _LINE // one.unit
    return pieces


class _Words:
    """A part whose last dimension counts words of ``unit`` bytes, of which strips along ``axis`` are read."""

    def __init__(self, part: WovenPart, itemsize: int, unit: int, axis: int) -> None:
        self.part = part
        self.unit = unit
        self.axis = axis
        self.begin = (*part.begin[:-1], part.begin[-1] * itemsize // unit)
        size = (*part.size[:-1], part.size[-1] * itemsize // unit)
        self.outer, self.rows, self.inner = size[:axis], size[axis], size[axis + 1 :]

    def piece(self, prefix: tuple[int, ...], begin: int, end: int, at: int) -> _Piece | None:
        """What the part has of a strip; None if it has nothing."""
        axis, number = self.axis, 0
        for index, first, size in zip(prefix, self.begin, self.outer, strict=False):
            if not first <= index < first + size:
                return None
            number = number * size + index - first
        low, high = max(begin, self.begin[axis]), min(end, self.begin[axis] + self.rows)
        return _Piece(self, low, high, number * self.rows + low - self.begin[axis], at) if low < high else None


class _Piece:
    """Rows ``low`` to ``high`` of a part, from its own row ``first`` on, which are read to word ``at`` of the room."""

    def __init__(self, words: _Words, low: int, high: int, first: int, at: int) -> None:
        self.part = words.part
        self._words = words
        self._low, self._high, self._at = low, high, at
        row = math.prod(words.inner)
        self._count = (high - low) * row
        self.offset = words.part.run.offset + first * row * words.unit
        self.nbytes = self._count * words.unit

    def extent(self, room: Words) -> Extent:
        """Where the bytes lie in the file, and belong in the room."""
        address = room.ctypes.data + self._at * self._words.unit
        return Extent(self.offset, self.nbytes, address, True, "cpu", room, self.part.run.name)

    def copy_to(self, strip: Words, begin: int, room: Words) -> None:
        """Copy the words to where they belong in a strip that begins with the row ``begin``."""
        axis, inner = self._words.axis, self._words.inner
        columns = [slice(at, at + size) for at, size in zip(self._words.begin[axis + 1 :], inner, strict=True)]
        place = (slice(self._low - begin, self._high - begin), *columns)
        strip[place] = room[self._at : self._at + self._count].reshape(-1, *inner)


def _read(pieces: Sequence[_Piece], room: Words, readers: Executor) -> None:
    by_file: dict[SourceFile, list[_Piece]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.offset):
        by_file.setdefault(piece.part.run.file, []).append(piece)
    reads = [_submit(readers, file, [piece.extent(room) for piece in own]) for file, own in by_file.items()]
    wait(reads)  # all of them: none may still write into the room when one has failed
    for own, read in zip(by_file.values(), reads, strict=True):
        for piece, crc in zip(own, read.result(), strict=True):
            piece.part.took(crc, piece.nbytes)


def _submit(readers: Executor, file: SourceFile, extents: Sequence[Extent]) -> Future[Sequence[int]]:
    """Read on another thread; on this one if the system has no more."""
    try:
        return readers.submit(file.read, extents, Control())
    except RuntimeError:
        done: Future[Sequence[int]] = Future()
        try:
            done.set_result(file.read(extents, Control()))
        except Exception as error:
            done.set_exception(error)
        return done
