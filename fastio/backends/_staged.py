"""Reads and writes of extents through one block of host memory, a window at a time, with matching checksums.

If another thread changes memory between the checksum and the write, the two differ. So the bytes are copied once, and
both the checksum and the transfer use the copy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

from fastio.backends import _files
from fastio.backends._checksums import Checksums
from fastio.backends._windows import part, windows
from fastio.files.full_write import write_all
from fastio.transports.transport import Extent, ReadRequest, WriteRequest

Copy = Callable[[Extent, int], object]
"""Copies an extent's bytes to or from an address in the block."""


class Block:
    """``nbytes`` of host memory."""

    def __init__(self, nbytes: int) -> None:
        self._array = np.empty(nbytes, dtype=np.uint8)
        self.address = self._array.ctypes.data
        self.view = self._array.data


def write(request: WriteRequest, nbytes: int, gather: Copy) -> list[int]:
    """Write all extents, ``nbytes`` of the file at a time; returns the requested checksums, 0 elsewhere."""
    checksums = Checksums(request.extents, request.patches)
    block = Block(min(nbytes, request.size))
    for window in windows(request.extents, nbytes):
        _files.stop_if_cancelled(request.control, request.path)
        begin = end = window.begin
        for piece in window.pieces:
            ctypes.memset(block.address + end - begin, 0, piece.offset - end)
            gather(part(request.extents, piece), block.address + piece.offset - begin)
            end = piece.end
        checksums.take(window, begin, block)
        write_all(request.path, request.fd, block.view[: end - begin], begin)
        request.control.advance(window.nbytes)
    return checksums.result()


def read(request: ReadRequest, nbytes: int, scatter: Copy) -> list[int]:
    """Fill all extents, ``nbytes`` of the file at a time; returns the requested checksums, 0 elsewhere."""
    checksums = Checksums(request.extents)
    block = Block(min(nbytes, request.size))
    for window in windows(request.extents, nbytes):
        _files.stop_if_cancelled(request.control, request.path)
        begin = window.begin
        name = request.extents[window.pieces[0].extent].name
        _files.read_all(request.path, request.fd, block.view[: window.end - begin], begin, name)
        checksums.take(window, begin, block)
        for piece in window.pieces:
            scatter(part(request.extents, piece), block.address + piece.offset - begin)
        request.control.advance(window.nbytes)
    return checksums.result()
