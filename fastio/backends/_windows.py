"""Extents cut into windows: parts of a file of bounded size, in file order. Pure; all sizes are bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fastio.errors import RefusedError
from fastio.transports.transport import Extent, ReadRequest, WriteRequest


class Piece(NamedTuple):
    """The bytes ``[offset, offset + nbytes)`` of a file, all in the extent of index ``extent``."""

    extent: int
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


class Window(NamedTuple):
    """One or more pieces that lie between two neighbouring multiples of the window's size."""

    pieces: tuple[Piece, ...]

    @property
    def begin(self) -> int:
        return self.pieces[0].offset

    @property
    def end(self) -> int:
        return self.pieces[-1].end

    @property
    def nbytes(self) -> int:
        """Bytes of the pieces, gaps not counted."""
        return sum(piece.nbytes for piece in self.pieces)


def windows(extents: Sequence[Extent], nbytes: int) -> Iterator[Window]:
    """Cut sorted extents at the multiples of ``nbytes``; windows that hold no byte of an extent are left out."""
    pieces: list[Piece] = []
    for index, extent in enumerate(extents):
        begin, end = extent.offset, extent.offset + extent.nbytes
        while begin < end:
            if pieces and pieces[0].offset // nbytes != begin // nbytes:
                yield Window(tuple(pieces))
                pieces = []
            stop = min(end, (begin // nbytes + 1) * nbytes)
            pieces.append(Piece(index, begin, stop - begin))
            begin = stop
    if pieces:
        yield Window(tuple(pieces))


def part(extents: Sequence[Extent], piece: Piece) -> Extent:
    """A piece as an extent, with its own offset and address."""
    extent = extents[piece.extent]
    address = extent.address + piece.offset - extent.offset
    return extent._replace(offset=piece.offset, nbytes=piece.nbytes, address=address)


def check(request: ReadRequest | WriteRequest) -> None:
    """Raises RefusedError unless extents are sorted, do not overlap and lie inside the file: windows rely on it."""
    end = 0
    for extent in request.extents:
        if extent.offset < end or extent.nbytes < 0 or extent.offset + extent.nbytes > request.size:
            raise RefusedError(
                f"{request.path}: expected sorted, disjoint extents inside the file's {request.size} bytes, found "
                f"{extent.nbytes} bytes at offset {extent.offset}"
            )
        end = extent.offset + extent.nbytes
