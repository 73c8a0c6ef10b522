"""Requests to transports for a view, as requests for the file or block device that the volume lies on.

Extents are shifted to where the object lies, and cut where its runs end. A write covers the object's blocks from the
first to the last: between extents it writes zeros, since blocks hold what an earlier object left there. It writes no
byte of another object.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence

from fastio._native import crc32_combine
from fastio.errors import RefusedError
from fastio.files import direct_io
from fastio.transports.transport import Extent, Patch, ReadRequest, Span, TransportResult, WriteRequest
from fastio.volumes.device import BLOCK
from fastio.volumes.file_device import FileDevice
from fastio.volumes.views import View

_ZEROS = ctypes.create_string_buffer(1 << 20)
_ZEROS_ADDRESS = ctypes.addressof(_ZEROS)

Move = Callable[[ReadRequest | WriteRequest], TransportResult]


class _Cut:
    """Extents of a view where they lie on the device: ``extents``, each a part of one of the view's (``sources``).

    ``source`` is None for zeros.
    """

    def __init__(self, view: View, extents: Sequence[Extent]) -> None:
        self.extents: list[Extent] = []
        self.sources: list[int | None] = []
        self._view = view
        for index, extent in enumerate(extents):
            self.add(extent, index)

    def add(self, extent: Extent, source: int | None) -> None:
        """Add an extent, behind those that are there."""
        for shift, low, high in _shifts(self._view, extent.offset, extent.offset + extent.nbytes):
            address = extent.address + low - extent.offset if extent.address else 0  # 0: the bytes are not kept
            self.extents.append(extent._replace(offset=low + shift, nbytes=high - low, address=address))
            self.sources.append(source)

    def checksums(self, count: int, values: Sequence[int]) -> list[int]:
        """A CRC-32 for each of the view's ``count`` extents, of those of their parts."""
        whole = [0] * count
        for extent, source, value in zip(self.extents, self.sources, values, strict=True):
            if source is not None and extent.checksum:
                whole[source] = crc32_combine(whole[source], value, extent.nbytes)
        return whole


def redirected(view: View, request: ReadRequest | WriteRequest, is_direct: bool, move: Move) -> TransportResult:
    """Have ``move`` do a request for a view, by a request for the device. ``is_direct``: with O_DIRECT, it may be.

    RefusedError if the device is no open file, or if direct I/O there writes more than a volume's block.
    """
    if isinstance(request, WriteRequest):
        return _write(view, request, is_direct, move)
    path, fd = request.path, _descriptor(view, request.path)
    cut = _Cut(view, request.extents)
    span = None if request.span is None else _span(view, request.span)
    onto = ReadRequest(path, fd, _end(view), cut.extents, span, request.resident, request.control, request.cached)
    onto.ordered = request.ordered
    moved = move(onto)
    filled = moved.filled_span and span is not None
    if moved.checksums is None:
        return moved._replace(filled_span=filled)
    return moved._replace(checksums=cut.checksums(len(request.extents), moved.checksums), filled_span=filled)


def _write(view: View, request: WriteRequest, is_direct: bool, move: Move) -> TransportResult:
    path, fd = request.path, _descriptor(view, request.path)
    if is_direct and (needed := math.lcm(BLOCK, *direct_io.alignments(path, fd))) > BLOCK:
        raise RefusedError(f"{path}: direct I/O there writes {needed} bytes at once, a volume's blocks have {BLOCK}")
    cut = _Cut(view, ())
    at = 0
    for index, extent in enumerate(request.extents):
        _add_zeros(cut, at, extent.offset)
        cut.add(extent, index)
        at = extent.offset + extent.nbytes
    _add_zeros(cut, at, -(-view.nbytes // BLOCK) * BLOCK)
    places = {source: number for number, source in enumerate(cut.sources) if source is not None}
    is_cut = len(places) < sum(source is not None for source in cut.sources)
    patches = [] if is_cut else [_patch(view, patch, places) for patch in request.patches]
    onto = WriteRequest(path, fd, _end(view), cut.extents, patches, request.durable, request.control)
    onto.ordered = request.ordered
    moved = move(onto)
    if moved.checksums is None:
        return moved
    values = cut.checksums(len(request.extents), moved.checksums)
    for patch in request.patches if is_cut else ():
        view.write(patch.offset, memoryview(values[patch.extent].to_bytes(4, "little")))
    return moved._replace(checksums=values)


def _patch(view: View, patch: Patch, places: dict[int, int]) -> Patch:
    ((shift, _, _),) = _shifts(view, patch.offset, patch.offset + 4)
    return Patch(patch.offset + shift, places[patch.extent])


def _add_zeros(cut: _Cut, begin: int, end: int) -> None:
    for at in range(begin, end, len(_ZEROS)):
        cut.add(Extent(at, min(len(_ZEROS), end - at), _ZEROS_ADDRESS, False, owner=_ZEROS), None)


def _span(view: View, span: Span) -> Span | None:
    """The span on the device; None if it lies in several runs."""
    shifts = list(_shifts(view, span.offset, span.offset + span.nbytes))
    return span._replace(offset=span.offset + shifts[0][0]) if len(shifts) == 1 else None


def _shifts(view: View, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The parts of the view's bytes ``[begin, end)`` by runs: how far each is shifted on the device, its begin and end.

    The last block is whole: the bytes behind the object are its own.
    """
    at = 0
    for run in view.runs:
        low, high = max(begin, at), min(end, at + run.blocks * BLOCK)
        if low < high:
            yield run.first * BLOCK - at, low, high
        at += run.blocks * BLOCK


def _end(view: View) -> int:
    """The byte of the device at which the object's last block ends."""
    return view.runs[-1].end * BLOCK if view.runs else 0


def _descriptor(view: View, path: str) -> int:
    if not isinstance(view.device, FileDevice):
        raise RefusedError(f"{path}: this tool moves bytes of files and block devices only")
    return view.device.fd
