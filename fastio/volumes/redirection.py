"""Requests to transports for a view, as requests for the file or block device that the volume lies on.

Extents are shifted to where the object lies, and cut where its runs end. A transport writes zeros between the first
extent and the last where none is, so each run of blocks is a write of its own, which covers all of it: blocks hold what
an earlier object left there, and between runs lie other objects.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence

from fastio._native import crc32_combine
from fastio.errors import RefusedError
from fastio.files import direct_io
from fastio.transports.transport import Extent, Patch, ReadRequest, TransportResult, WriteRequest
from fastio.volumes.device import BLOCK
from fastio.volumes.extents import Run
from fastio.volumes.file_device import FileDevice
from fastio.volumes.views import View

_ZEROS = ctypes.create_string_buffer(1 << 20)
_ZEROS_ADDRESS = ctypes.addressof(_ZEROS)

Move = Callable[[ReadRequest | WriteRequest], TransportResult]
Piece = tuple[Extent, int]
"""A part of an extent where it lies on the device, and the index of the extent; -1 for zeros."""


def redirected(
    view: View, request: ReadRequest | WriteRequest, tool: str, is_direct: bool, move: Move
) -> TransportResult:
    """Have ``move``, which is the tool's, do a request for a view. ``is_direct``: with O_DIRECT, it may be.

    On a namespace the tool becomes its driver, and takes the request as it is. On a file or a block device tools get
    requests for that. RefusedError for any other tool, and if direct I/O there writes more than a volume's block.
    """
    if not isinstance(view.device, FileDevice):
        view.drive_by(tool)
        return move(request)
    if isinstance(request, ReadRequest):
        return _read(view, view.device.fd, request, move)
    if is_direct and (needed := math.lcm(BLOCK, *direct_io.alignments(request.path, view.device.fd))) > BLOCK:
        problem = f"direct I/O there writes {needed} bytes at once, a volume's blocks have {BLOCK}"
        raise RefusedError(f"{request.path}: {problem}")
    return _write(view, view.device.fd, request, move)


def _read(view: View, fd: int, request: ReadRequest, move: Move) -> TransportResult:
    pieces = [piece for begin, run in _runs(view) for piece in _within(begin, run, request.extents)]
    span, size = request.span, view.runs[-1].end * BLOCK if view.runs else 0
    if span is not None:
        shift = view.runs[0].first * BLOCK
        span = span._replace(offset=span.offset + shift) if len(view.runs) == 1 else None
    extents = [extent for extent, _ in pieces]
    onto = ReadRequest(request.path, fd, size, extents, span, request.resident, request.control, request.cached)
    onto.ordered = request.ordered
    moved = move(onto)
    values = None if moved.checksums is None else _combined(len(request.extents), pieces, moved.checksums)
    return moved._replace(checksums=values, filled_span=moved.filled_span and span is not None)


def _write(view: View, fd: int, request: WriteRequest, move: Move) -> TransportResult:
    whole = len(view.runs) == 1
    results: list[TransportResult] = []
    values = [0] * len(request.extents)
    for begin, run in _runs(view):
        pieces = _covering(begin, run, request.extents)
        places = {index: number for number, (_, index) in enumerate(pieces)}
        shift = run.first * BLOCK
        patches = [Patch(patch.offset + shift, places[patch.extent]) for patch in request.patches] if whole else []
        extents = [extent for extent, _ in pieces]
        onto = WriteRequest(request.path, fd, run.end * BLOCK, extents, patches, request.durable, request.control)
        onto.ordered = request.ordered
        results.append(move(onto))
        if (found := results[-1].checksums) is not None:
            values = _combined(len(values), pieces, found, values)
    moved = results[-1]
    if moved.checksums is None:
        return moved
    for patch in () if whole else request.patches:
        view.write(patch.offset, memoryview(values[patch.extent].to_bytes(4, "little")))
    notes = dict.fromkeys(note for result in results for note in result.notes)
    return moved._replace(checksums=values, notes=tuple(notes))


def _runs(view: View) -> list[tuple[int, Run]]:
    """Each run, behind the byte of the object that it begins with."""
    found, at = [], 0
    for run in view.runs:
        found.append((at, run))
        at += run.blocks * BLOCK
    return found


def _within(begin: int, run: Run, extents: Sequence[Extent]) -> list[Piece]:
    """What lies in a run, whose first byte is the object's ``begin``."""
    end, shift = begin + run.blocks * BLOCK, run.first * BLOCK - begin
    pieces = []
    for index, extent in enumerate(extents):
        low, high = max(begin, extent.offset), min(end, extent.offset + extent.nbytes)
        if low < high:
            address = extent.address + low - extent.offset if extent.address else 0  # 0: the bytes are not kept
            pieces.append((extent._replace(offset=low + shift, nbytes=high - low, address=address), index))
    return pieces


def _covering(begin: int, run: Run, extents: Sequence[Extent]) -> list[Piece]:
    """The same, and zeros wherever no extent is."""
    pieces: list[Piece] = []
    at, end = run.first * BLOCK, run.end * BLOCK
    for extent, index in [*_within(begin, run, extents), (Extent(end, 0, 0, False), -1)]:
        for zeros in range(at, extent.offset, len(_ZEROS)):
            nbytes = min(len(_ZEROS), extent.offset - zeros)
            pieces.append((Extent(zeros, nbytes, _ZEROS_ADDRESS, False, owner=_ZEROS), -1))
        if extent.nbytes:
            pieces.append((extent, index))
        at = extent.offset + extent.nbytes
    return pieces


def _combined(
    count: int, pieces: Sequence[Piece], values: Sequence[int], before: Sequence[int] | None = None
) -> list[int]:
    """A CRC-32 for each of ``count`` extents, of those of their pieces, behind what was there ``before``."""
    whole = list(before or [0] * count)
    for (extent, index), value in zip(pieces, values, strict=True):
        if extent.checksum:
            whole[index] = crc32_combine(whole[index], value, extent.nbytes)
    return whole
