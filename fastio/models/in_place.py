"""Fills tensors that have memory from files.

Where the bytes of a file are those of the tensor, they are read straight into it. Else, as where the dtype differs or
the tensor is not contiguous, they are read into a buffer of bounded size, compared, and copied.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from fastio._native import Control, crc32_combine
from fastio.engine.background_job import under_way
from fastio.engine.extent_reads import read_extents
from fastio.engine.tool_selection import is_filled, plan_transfer
from fastio.engine.torch_load import UNSEALED
from fastio.formats.layout import storage_offset_bytes
from fastio.formats.safetensors.format import tensor_on
from fastio.memory.float4 import copyable
from fastio.memory.load_buffers import LoadBuffers, Region, is_aligned
from fastio.memory.raw_memory import mark_overwritten, synchronize
from fastio.models.part_batches import BATCH_BYTES, Batch, Part, batches
from fastio.models.part_reads import read_batch, read_into
from fastio.models.partial_load import PartialLoad
from fastio.models.weight_files import WeightFile, WeightFiles
from fastio.results import Transfer, publish
from fastio.transports.transport import LOAD, Extent


def check_tools(policy: Any, devices: Iterable[torch.device], files: WeightFiles) -> None:
    """ToolUnavailableError if ``policy`` names a tool that cannot fill memory on one of the devices."""
    for kind in {device.type for device in devices}:
        for file_format in {file.format for file in files.files}:
            if is_filled(kind, file_format):  # else by way of host memory
                plan_transfer(LOAD, files.described, file_format, {torch.device(kind)}, 0, 0, policy, "extents")


def fill_in_place(
    targets: Mapping[str, torch.Tensor], overlapping: set[str], files: WeightFiles, policy: Any, partial: PartialLoad
) -> None:
    """Fill tensors, in the order of the files, from the tensors of the same names; convert those of another dtype.

    ``overlapping`` are names of tensors that share memory with others. All files are as they were opened when the first
    byte changes. Raises as :func:`read_batch` does, and tells ``partial`` what it fills.
    """
    straight: dict[tuple[WeightFile, torch.device], list[_Straight]] = {}
    copied: dict[torch.device, list[Part]] = {}
    filled = {
        (kind, file.format): is_filled(kind, file.format)
        for kind in {target.device.type for target in targets.values()}
        for file in files.files
    }
    for name, target in targets.items():
        file, device = files.file_of[name], target.device
        entry = file.table.entries[name]
        ahead = straight.setdefault((file, device), [])
        # Two tensors of a .pt may be in one storage.
        is_apart = not ahead or entry.offset >= ahead[-1].extent.offset + ahead[-1].extent.nbytes
        is_same = entry.dtype == target.dtype and entry.stride is None and name not in overlapping
        if not (is_apart and is_same and filled[device.type, file.format] and is_plain(target)):
            copied.setdefault(device, []).append(Part(file, name, entry))
            continue
        storage, crc = target.untyped_storage(), file.crc(name)
        address = storage.data_ptr() + storage_offset_bytes(target)
        extent = Extent(entry.offset, entry.nbytes, address, crc is not None, device.type, storage, name)
        ahead.append(_Straight(extent, target, crc))
    for file in files.files:
        file.check_unchanged()
    synchronize({target.device for target in targets.values()})
    control = Control()

    def fill() -> None:
        for (file, _), ahead in straight.items():
            if not control.cancelled:
                _fill_straight(file, ahead, policy, partial, control)

    # One thread for all files, so that their reads follow each other. Only the main thread is interrupted.
    is_interrupted = threading.current_thread() is threading.main_thread()
    nbytes = sum(one.extent.nbytes for ahead in straight.values() for one in ahead) if is_interrupted else 0
    with under_way(fill, control, nbytes) as job:
        job.wait()
    for parts in copied.values():
        for batch in batches(parts, BATCH_BYTES, BATCH_BYTES):
            _copy_batch(batch, targets, policy, partial)


class _Straight(NamedTuple):
    """What is read straight into memory, and its CRC-32, if the file has one."""

    extent: Extent
    target: torch.Tensor
    crc: int | None


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether its bytes lie in its memory as a file has them."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg() and tensor.numel() > 0


def _fill_straight(
    file: WeightFile, ahead: list[_Straight], policy: Any, partial: PartialLoad, control: Control
) -> None:
    crcs = {index: one.crc for index, one in enumerate(ahead) if one.crc is not None}
    try:
        with partial.step([one.extent.name for one in ahead]):
            read_into(file, [one.extent for one in ahead], None, policy, crcs, in_place=True, control=control)
            file.check_unchanged()
    finally:
        for one in ahead:
            mark_overwritten(one.target)


def _copy_batch(batch: Batch, targets: Mapping[str, torch.Tensor], policy: Any, partial: PartialLoad) -> None:
    """Copy whole tensors of a file to their targets, all on one device, by way of at most 32 MiB of memory there.

    A tensor that a ``.pt`` stores with strides is the exception: it takes memory for all of it.
    """
    first = batch.parts[0]
    if batch.nbytes > BATCH_BYTES and first.entry.stride is None:
        with partial.step([first.name]):
            _copy_pieces(first, targets[first.name], policy)
        return
    with partial.step():
        tensors = read_batch(batch, targets[first.name].device, policy)
    with partial.step([part.name for part in batch.parts]):
        for part, tensor in zip(batch.parts, tensors, strict=True):
            copy_into(targets[part.name], tensor)


def copy_into(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy values, converted to the target's dtype, without a trace for autograd."""
    with torch.inference_mode(target.is_inference()), torch.no_grad():
        target, source = copyable(target, source)
        # Into strided memory torch converts one by one, which gives NaNs other bits than to() does.
        target.copy_(source if target.is_contiguous() else source.to(target.dtype))


def _copy_pieces(part: Part, target: torch.Tensor, policy: Any) -> None:
    """Copy a large tensor a piece at a time; compare the CRC-32 of them all at the end."""
    file = part.file
    value, offset, transfers = 0, part.offset, []
    for piece in pieces_of(target, BATCH_BYTES // part.entry.dtype.itemsize):
        region = Region(part.name, offset, piece.numel() * part.entry.dtype.itemsize, 0)
        transfer, crc = _copy_piece(part, region, piece, policy)
        value, offset = crc32_combine(value, crc, region.nbytes), offset + region.nbytes
        transfers.append(transfer)
    file.check_unchanged()
    if part.crc not in (None, value):
        raise file.mismatch(part.name)
    notes = (UNSEALED,) if file.verify and part.crc is None else ()
    for transfer in transfers:
        publish(replace(transfer, verified=part.crc is not None, fallbacks=(*notes, *transfer.fallbacks)))


def _copy_piece(part: Part, region: Region, piece: torch.Tensor, policy: Any) -> tuple[Transfer, int]:
    """Copy a part of a tensor; return how it was read, and its CRC-32. The memory for it ends with this call."""
    file, dtype = part.file, part.entry.dtype
    device = piece.device if is_filled(piece.device.type, file.format) else torch.device("cpu")
    aligned = is_aligned(region.offset, dtype.itemsize)
    buffers = LoadBuffers(file.path, [region], device, part.crc is not None, aligned)
    transfer, (crc,) = read_extents(
        file.path, file.fd, file.size, buffers.extents, buffers.span, policy, None, file.format, False, file.is_shared
    )
    copy_into(piece, tensor_on(buffers.storage(region), dtype, list(piece.shape)))
    return transfer, crc


def pieces_of(tensor: torch.Tensor, most: int) -> Iterator[torch.Tensor]:
    """Views of at most ``most`` elements, which are all of a tensor in the order of its elements."""
    if tensor.numel() <= most:
        yield tensor
        return
    axis = next(axis for axis, size in enumerate(tensor.shape) if size > 1)
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        halves = tensor.tensor_split(2, axis)
    for half in halves:
        yield from pieces_of(half, most)
