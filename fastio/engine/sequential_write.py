"""Saves to what cannot be replaced, from the first byte to the last: file objects, pipes and devices."""

from __future__ import annotations

import errno
import io
import time
from typing import Any

from fastio._native import crc32
from fastio.engine import header_digests
from fastio.engine.background_job import Progress, tell_end
from fastio.engine.executor import result_of
from fastio.engine.host_pieces import host_pieces
from fastio.engine.plan import InPlaceSave
from fastio.engine.torch_save import write_by_torch, write_to_object
from fastio.errors import ChecksumError, TransferError
from fastio.files.full_write import WholeWrites, whole_writes
from fastio.formats.layout import Layout
from fastio.results import Transfer
from fastio.transports.transport import SAVE, TransportResult


def save_in_place(plan: InPlaceSave, started: float, progress: Progress | None) -> Transfer:
    """Write to a file object, or to a file that cannot be replaced: a device, a pipe, an open file that was removed."""
    path = plan.request.path
    if plan.file is not None:
        return _write_in_order(plan, whole_writes(plan.file, path), started, progress)
    try:
        file = io.FileIO(path, "wb")
    except OSError as error:
        raise TransferError(error.errno or errno.EIO, "open", path) from error
    with file:
        return _write_in_order(plan, whole_writes(file, path), started, progress)


def _write_in_order(plan: InPlaceSave, f: Any, started: float, progress: Progress | None) -> Transfer:
    request, layout = plan.request, plan.layout
    tool, route, nbytes, verified = "torch", "library" if plan.file is None else "stream", 0, False
    if layout is not None:
        tool, route, nbytes, verified = "memory", "stream", layout.payload, bool(layout.digests)
        _write(layout, f, request.path)
        if callable(flush := getattr(f, "flush", None)):
            flush()  # as torch does: what was saved can be loaded, by another process, too
    elif plan.file is None:
        write_by_torch(request, f)
    else:
        write_to_object(request, f)
    tell_end(progress, nbytes)
    # A file object's durability is its owner's.
    notes = (f"not durable: {plan.why}",) if request.durable and plan.file is None else ()
    moved, seconds = TransportResult(route, notes=notes), time.perf_counter() - started
    return result_of(SAVE, request.path, request.file_format, tool, moved, plan.why, nbytes, seconds, verified=verified)


def _write(layout: Layout, f: Any, name: str) -> None:
    """Write the file of a layout to a file object, at its position; errors call it ``name``.

    ChecksumError if another thread changed a tensor after its checksum was written into the header.
    """
    crcs = header_digests.compute_before(layout)
    at, at_once = 0, _copies_at_once(f)
    for part in layout.parts:
        expected, crc = crcs.get(part.offset), 0
        if part.offset > at:
            f.write(bytes(part.offset - at))
        for piece in host_pieces(part):
            data = piece if at_once and expected is None else bytes(piece)
            f.write(data)
            crc = crc if expected is None else crc32(data, crc)
        if expected not in (None, crc):
            raise _changed(layout, name, part.offset)
        at = part.offset + part.nbytes


def _changed(layout: Layout, name: str, offset: int) -> ChecksumError:
    tensor = next(place.name for place in layout.digests if place.offset == offset)
    return ChecksumError(
        name,
        tensor,
        "it was changed while it was written, after its CRC-32 was written into the header: the file is damaged; save "
        "again while no other thread changes it, or with checksums=False",
    )


def _copies_at_once(f: Any) -> bool:
    """Whether the memory may change once ``write`` returns. Other file objects may keep a reference to it."""
    inner = f.raw if type(f) in (WholeWrites, io.BufferedWriter, io.BufferedRandom) else f
    return type(inner) in (io.FileIO, io.BytesIO)
