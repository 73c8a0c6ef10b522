"""Reads tensors and parts of them into memory of their own, neighbours together in one transfer.

No tensor is made before all of its transfer was read: a read that fails hands out nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch

from fastio._native import Control
from fastio._native import Mapping as HostMapping
from fastio.engine.extent_reads import read_extents
from fastio.engine.tool_selection import is_filled
from fastio.engine.torch_load import UNSEALED
from fastio.formats.safetensors.format import tensor_on
from fastio.memory.load_buffers import LoadBuffers, Region, bytes_of, is_aligned
from fastio.models.part_batches import BATCH_BYTES, Batch, Part
from fastio.models.selection import Blocks, blocks, pieces
from fastio.models.weight_files import WeightFile
from fastio.results import publish
from fastio.runtime.gc_pause import gc_paused
from fastio.runtime.native_errors import tensors_named, translate_native_errors
from fastio.transports.extent_rows import ExtentRows, Rows, entries
from fastio.transports.transport import Extent, Span

PARTS = "not verified: {parts} of {reads} reads are of parts of tensors, and the file's checksums are of whole ones"
_FEW = 100  # parts for which the collector is not paused
CACHE_LINE = 64  # each tensor begins in a cache line of its own


def read_batch(batch: Batch, device: torch.device, policy: Any = "auto") -> list[torch.Tensor]:
    """Read a batch into new memory; return its tensors, in its order, on ``device``.

    Raises CorruptFileError if the file is too short or was written to meanwhile, ChecksumError if a tensor is damaged,
    TransferError if the system refuses, ValueError if the file is closed.
    """
    parts, file, target = batch.parts, batch.parts[0].file, device
    are_runs = all(part.is_run for part in parts)
    if device.type != "cpu" and not (are_runs and is_filled(device.type, file.format)):
        target = torch.device("cpu")
    with file.reading():
        if are_runs:
            tensors = _read_runs(parts, target, policy)
        elif parts[0].is_read_in_place:
            tensors = _read_rows(parts, policy)
        else:
            tensors = [_read_blocks(parts[0], policy)]
        file.check_unchanged()
    return tensors if target == device else [tensor.to(device) for tensor in tensors]


def read_into(
    file: WeightFile,
    extents: Sequence[Extent],
    span: Span | None,
    policy: Any,
    crcs: Mapping[int, int],
    in_place: bool = False,
    control: Control | None = None,
) -> None:
    """Fill memory from a file, compare it with checksums, and give the transfer to the recorders.

    ``crcs`` maps the indices of extents to their CRC-32s; it lacks those that have none. ``in_place``: the memory was
    used before. ``control`` cancels the read. ChecksumError names the first damaged tensor, and has the names of all.
    """
    if not extents:
        return
    with tensors_named():
        transfer, values = read_extents(
            file.path, file.fd, file.size, extents, span, policy, None, file.format, in_place, file.is_shared, control
        )
    damaged = [extents[index].name for index, crc in crcs.items() if values[index] != crc]
    if damaged:
        file.check_unchanged()
        raise file.mismatch(*damaged)
    reads = len(entries(extents))
    parts = reads - len(crcs)
    unverified = PARTS.format(parts=parts, reads=reads) if file.checksummed else UNSEALED
    notes = (unverified,) if file.verify and parts else ()
    publish(replace(transfer, verified=not parts, fallbacks=(*notes, *transfer.fallbacks)))


def _read_runs(parts: Sequence[Part], device: torch.device, policy: Any) -> list[torch.Tensor]:
    file = parts[0].file
    with _paused(parts):
        regions = {
            number: Region(part.name, part.offset, part.nbytes, 0) for number, part in enumerate(parts) if part.nbytes
        }
        aligned = all(is_aligned(part.offset, part.entry.dtype.itemsize) for part in parts)
        known = [parts[number].crc for number in regions]
        crcs = {index: crc for index, crc in enumerate(known) if crc is not None}
        buffers = LoadBuffers(file.path, list(regions.values()), device, bool(crcs), aligned)
        extents = buffers.extents
        if 0 < len(crcs) < len(known):  # parts of tensors have none to compare with
            extents = [extent._replace(checksum=index in crcs) for index, extent in enumerate(extents)]
    read_into(file, extents, buffers.span, policy, crcs)
    with _paused(parts):
        return [
            _tensor_on(buffers.storage(regions[number]), part)
            if part.nbytes
            else torch.empty(part.shape, dtype=part.entry.dtype, device=device)
            for number, part in enumerate(parts)
        ]


def _paused(parts: Sequence[Part]) -> AbstractContextManager[None]:
    """Pause the garbage collector, which would look at every object of the process, several times for many parts."""
    return gc_paused() if len(parts) > _FEW else nullcontext()


def _tensor_on(storage: torch.UntypedStorage, part: Part) -> torch.Tensor:
    entry = part.entry
    if entry.stride is None:
        return tensor_on(storage, entry.dtype, part.shape)
    tensor = torch.empty(0, dtype=entry.dtype, device=storage.device)
    return tensor.set_(storage, 0, entry.shape, entry.stride)


def _read_rows(parts: Sequence[Part], policy: Any) -> list[torch.Tensor]:
    """Read parts, of which some are of several runs, straight to where their bytes belong in new host memory."""
    file = parts[0].file
    lines = (-(-part.nbytes // CACHE_LINE) * CACHE_LINE for part in parts)
    *starts, nbytes = accumulate(lines, initial=0)
    with translate_native_errors(file.path):
        memory = HostMapping(nbytes, used=True)
    found: list[Extent | Rows] = []
    crcs: dict[int, int] = {}
    number = 0
    for part, start in zip(parts, starts, strict=True):
        for entry in _entries(part, memory, start) if part.nbytes else ():
            if part.crc is not None:
                crcs[number] = part.crc
            found.append(entry)
            number += entry.repeats if isinstance(entry, Rows) else 1
    read_into(file, ExtentRows(found), None, policy, crcs)
    return [
        _tensor_on(bytes_of(memory, start, part.nbytes).untyped_storage(), part)
        if part.nbytes
        else torch.empty(part.shape, dtype=part.entry.dtype)
        for part, start in zip(parts, starts, strict=True)
    ]


def _entries(part: Part, memory: HostMapping, start: int) -> Iterator[Extent | Rows]:
    """The extents of a part that lies at ``start`` of ``memory``."""
    if part.is_run:
        address = memory.address + start
        yield Extent(part.offset, part.nbytes, address, part.crc is not None, "cpu", memory, part.name)
        return
    itemsize = part.entry.dtype.itemsize
    found = blocks(part.elements, itemsize)
    row, step = found.length * itemsize, found.stride * itemsize
    for group, begin in enumerate(found.starts):
        offset, address = part.entry.offset + begin * itemsize, memory.address + start + group * found.repeats * row
        yield Rows(offset, row, address, False, "cpu", memory, part.name, found.repeats, step)


def _read_blocks(part: Part, policy: Any) -> torch.Tensor:
    """Read a part of many short runs: blocks of them, a bounded amount at a time, into a buffer, and pack the runs."""
    itemsize = part.entry.dtype.itemsize
    with translate_native_errors(part.file.path):
        packed = HostMapping(part.nbytes, used=True)
    filled = bytes_of(packed, 0, part.nbytes)
    done = 0
    for piece in pieces(part.elements, BATCH_BYTES // itemsize):
        nbytes = piece.numel * itemsize
        _read_piece(part, blocks(piece, itemsize), filled[done : done + nbytes], policy)
        done += nbytes
    return tensor_on(filled.untyped_storage(), part.entry.dtype, part.shape)


def _read_piece(part: Part, found: Blocks, target: torch.Tensor, policy: Any) -> None:
    """Read blocks into a buffer, and copy what is wanted of them into ``target``, uint8 of shape (nbytes,)."""
    itemsize = part.entry.dtype.itemsize
    block = found.length * itemsize
    regions = [
        Region(part.name, part.entry.offset + at * itemsize, block, 0)
        for start in found.starts
        for at in range(start, start + found.repeats * found.stride, found.stride)
    ]
    buffers = LoadBuffers(part.file.path, regions, torch.device("cpu"), False)
    read_into(part.file, buffers.extents, buffers.span, policy, {})
    # As bytes: torch copies no dtype of less than a byte, and memory need not be aligned.
    inner = found.inner or [(found.length, 1)]
    shape = (*(size for size, _ in inner), itemsize)
    stride = (*(stride * itemsize for _, stride in inner), 1)
    wanted = target.view(len(regions), *shape)
    for number, region in enumerate(regions):
        source = torch.empty(0, dtype=torch.uint8).set_(buffers.storage(region))
        wanted[number].copy_(source.as_strided(shape, stride))
