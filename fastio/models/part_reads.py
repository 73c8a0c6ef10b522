"""Reads tensors and parts of them into memory of their own, neighbours together in one transfer.

No tensor is made before all of its transfer was read: a read that fails hands out nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from fastio import _native
from fastio.engine.load import is_filled, read_extents
from fastio.engine.torch_load import UNSEALED
from fastio.formats.safetensors.format import tensor_on
from fastio.formats.safetensors.tensor_table import Entry
from fastio.memory.load_buffers import LoadBuffers, Region, bytes_of, is_aligned
from fastio.models.selection import Blocks, Selection, blocks, pieces, whole
from fastio.models.weight_files import WeightFile
from fastio.results import publish
from fastio.runtime.native_errors import translate_native_errors
from fastio.transports.transport import Extent, Span

# The most bytes of one transfer, and of the buffer that rows are read into; a larger tensor is read alone.
BATCH_BYTES = 32 << 20
PARTS = "not verified: {parts} of {reads} reads are of parts of tensors, and the file's checksums are of whole ones"


class Part(NamedTuple):
    """A tensor of a file, or a part of one. ``selection`` is all of it or some; of one with strides, all."""

    file: WeightFile
    name: str
    entry: Entry
    selection: Selection

    @property
    def nbytes(self) -> int:
        """The bytes of the part in memory."""
        has_strides = self.entry.stride is not None
        return self.entry.nbytes if has_strides else self.selection.numel * self.entry.dtype.itemsize

    @property
    def crc(self) -> int | None:
        """The CRC-32 of the part's bytes; None if the file has none, as of a part of a tensor."""
        return self.file.crc(self.name) if self.selection == whole(self.entry.shape) else None

    @property
    def is_run(self) -> bool:
        """Whether it is one run of bytes in the file."""
        return self.nbytes == 0 or self.entry.stride is not None or self.selection.is_contiguous

    @property
    def offset(self) -> int:
        """Where it begins in the file."""
        return self.entry.offset + self.selection.start * self.entry.dtype.itemsize


class Batch(NamedTuple):
    """Parts that one transfer reads: of one file, sorted and apart; or a single part of several runs.

    ``indices`` are the parts' places in the list that the batches were made of.
    """

    parts: list[Part]
    indices: list[int]

    @property
    def nbytes(self) -> int:
        """The bytes of the parts in memory."""
        return sum(part.nbytes for part in self.parts)


def batches(parts: Sequence[Part], most: int = BATCH_BYTES) -> list[Batch]:
    """Group parts by file and offset into batches of at most ``most`` bytes; a larger part is a batch of its own.

    The files stay in the order in which they first occur.
    """
    order = {file: number for number, file in enumerate(dict.fromkeys(part.file for part in parts))}
    ordered = sorted(range(len(parts)), key=lambda index: (order[parts[index].file], parts[index].offset))
    found: list[Batch] = []
    nbytes, end = 0, 0
    for index in ordered:
        part = parts[index]
        last = found[-1].parts[-1] if found else None
        joins = last is not None and last.file is part.file and last.is_run and part.is_run
        if joins and part.offset >= end and nbytes + part.nbytes <= most:
            found[-1].parts.append(part)
            found[-1].indices.append(index)
            nbytes += part.nbytes
        else:
            found.append(Batch([part], [index]))
            nbytes = part.nbytes
        end = part.offset + part.nbytes
    return found


def read_batch(batch: Batch, device: torch.device, policy: Any = "auto") -> list[torch.Tensor]:
    """Read a batch into new memory; return its tensors, in its order, on ``device``.

    Raises CorruptFileError if the file is too short or was written to meanwhile, ChecksumError if a tensor is damaged,
    TransferError if the system refuses, ValueError if the file is closed.
    """
    file, target = batch.parts[0].file, device
    if device.type != "cpu" and not (batch.parts[0].is_run and is_filled(device.type, file.format)):
        target = torch.device("cpu")
    with file.reading():
        is_run = batch.parts[0].is_run
        tensors = _read_runs(batch.parts, target, policy) if is_run else [_read_rows(batch.parts[0], policy)]
        file.check_unchanged()
    return tensors if target == device else [tensor.to(device) for tensor in tensors]


def read_into(
    file: WeightFile, extents: Sequence[Extent], span: Span | None, policy: Any, crcs: Sequence[int | None]
) -> None:
    """Fill memory from a file, compare it with checksums, and give the transfer to the recorders.

    ``crcs`` has the CRC-32 of each extent, and None for one that has none. ChecksumError names a damaged tensor.
    """
    if not extents:
        return
    transfer, values = read_extents(file.path, file.fd, file.size, extents, span, policy, None, file.format)
    for extent, crc, value in zip(extents, crcs, values, strict=True):
        if crc not in (None, value):
            file.check_unchanged()
            raise file.mismatch(extent.name)
    parts = list(crcs).count(None)
    unverified = PARTS.format(parts=parts, reads=len(extents)) if file.checksummed else UNSEALED
    notes = (unverified,) if file.verify and parts else ()
    publish(replace(transfer, verified=not parts, fallbacks=(*notes, *transfer.fallbacks)))


def _read_runs(parts: Sequence[Part], device: torch.device, policy: Any) -> list[torch.Tensor]:
    file = parts[0].file
    regions: dict[int, Region] = {}
    names: set[str] = set()
    for number, part in enumerate(parts):
        if part.nbytes:  # a region's name is its own, and errors have it
            name = part.name if part.name not in names else f"{part.name} ({number})"
            names.add(name)
            regions[number] = Region(name, part.offset, part.nbytes, 0)
    aligned = all(is_aligned(part.offset, part.entry.dtype.itemsize) for part in parts)
    crcs = [parts[number].crc for number in regions]
    checksum = any(crc is not None for crc in crcs)
    buffers = LoadBuffers(file.path, list(regions.values()), device, checksum, aligned)
    read_into(file, buffers.extents, buffers.span, policy, crcs)
    return [
        _tensor_on(buffers.storage(regions[number]), part)
        if part.nbytes
        else torch.empty(part.selection.shape, dtype=part.entry.dtype, device=device)
        for number, part in enumerate(parts)
    ]


def _tensor_on(storage: torch.UntypedStorage, part: Part) -> torch.Tensor:
    entry = part.entry
    if entry.stride is None:
        return tensor_on(storage, entry.dtype, list(part.selection.shape))
    tensor = torch.empty(0, dtype=entry.dtype, device=storage.device)
    return tensor.set_(storage, 0, entry.shape, entry.stride)


def _read_rows(part: Part, policy: Any) -> torch.Tensor:
    """Read a part of several runs, a bounded amount at a time, and pack it into new memory."""
    itemsize = part.entry.dtype.itemsize
    with translate_native_errors(part.file.path):
        packed = _native.Mapping(part.nbytes, used=True)
    filled = bytes_of(packed, 0, part.nbytes)
    separate = not blocks(part.selection, itemsize).inner
    done = 0
    for piece in [part.selection] if separate else pieces(part.selection, BATCH_BYTES // itemsize):
        nbytes = piece.numel * itemsize
        found = blocks(piece, itemsize)
        if found.inner:
            _read_blocks(part, found, filled[done : done + nbytes], policy)
        else:
            extents = list(_extents(part, found, packed, done))
            read_into(part.file, extents, None, policy, [None] * len(extents))
        done += nbytes
    return tensor_on(filled.untyped_storage(), part.entry.dtype, list(part.selection.shape))


def _read_blocks(part: Part, found: Blocks, target: torch.Tensor, policy: Any) -> None:
    """Read blocks into a buffer, and copy what is wanted of them into ``target``, uint8 of shape (nbytes,)."""
    itemsize = part.entry.dtype.itemsize
    block = found.length * itemsize
    regions = [
        Region(f"{part.name} ({start})", part.entry.offset + start * itemsize, block, 0) for start in found.starts
    ]
    buffers = LoadBuffers(part.file.path, regions, torch.device("cpu"), False)
    read_into(part.file, buffers.extents, buffers.span, policy, [None] * len(regions))
    # As bytes: torch copies no dtype of less than a byte, and memory need not be aligned.
    shape = (*(size for size, _ in found.inner), itemsize)
    stride = (*(stride * itemsize for _, stride in found.inner), 1)
    wanted = target.view(len(regions), *shape)
    for number, region in enumerate(regions):
        source = torch.empty(0, dtype=torch.uint8).set_(buffers.storage(region))
        wanted[number].copy_(source.as_strided(shape, stride))


def _extents(part: Part, found: Blocks, packed: _native.Mapping, done: int) -> Iterable[Extent]:
    """The extents of blocks that are wanted whole, one behind the other in memory."""
    itemsize = part.entry.dtype.itemsize
    block = found.length * itemsize
    for number, start in enumerate(found.starts):
        address = packed.address + done + number * block
        yield Extent(part.entry.offset + start * itemsize, block, address, False, "cpu", packed, part.name)
