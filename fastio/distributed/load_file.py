"""Fills the tensors of a rank from one data file, with the fewest transfers and copies.

Tensors that lie in memory as they lie in the file are read straight into place, all in one batch: also parts of items,
after a change of the number of ranks, except their first and last block, which must be checked whole. The rest (other
dtypes and strides, objects) is read into a buffer, a bounded amount at a time, checked, and copied from there.
"""

from __future__ import annotations

import io
import logging
import operator
import os
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlanner, ReadItem

from fastio._native import Mapping
from fastio.distributed.dcp_zip_items import Entry, check, locate_tensors
from fastio.distributed.read_requests import ReadRequest, batches
from fastio.distributed.stored_items import FORMAT, Stored, annotation
from fastio.engine.extent_reads import read_extents
from fastio.errors import CorruptFileError, UnsupportedError, quoted, shortened
from fastio.formats.layout import storage_offset_bytes
from fastio.memory.load_buffers import bytes_of
from fastio.memory.raw_memory import mark_overwritten, view
from fastio.progress import shown
from fastio.results import publish
from fastio.runtime.native_errors import translate_native_errors
from fastio.sizes import exact_size
from fastio.transports.transport import Extent

# The most bytes that are read into a buffer at a time; a larger item is read alone.
_BUFFER_BYTES = 256 << 20
_ALIGNMENT = 64
_NOT_ALLOWED = "Unsupported global"  # in torch's message about a class that weights_only=True refuses

AS_IT_IS = " (Reader(verify=False) loads it as it is)"
"""The end of the cure of a damaged item."""

logger = logging.getLogger("fastio.distributed")


class FileLoad:
    """The read requests of one rank for one open data file of ``size`` bytes."""

    def __init__(
        self, path: str, fd: int, size: int, policy: Any, verify: bool, progress: Any, file_format: str = FORMAT
    ) -> None:
        self._path, self._fd, self._size, self._format = path, fd, size, file_format
        self._policy, self._verify, self._progress = policy, verify, progress
        self._infos: dict[Any, Any] = {}
        self._items: dict[Any, list[ReadItem]] = {}

    def add(self, item: ReadItem, info: Any) -> None:
        """Add a request; ``info`` is its storage info in DCP's metadata."""
        name = item.storage_index.fqn
        if getattr(info, "transform_descriptors", None):
            by = shortened(", ".join(map(str, info.transform_descriptors)))
            raise UnsupportedError(
                f"{self._path}: {quoted(name)} was transformed by {by} when it was saved; load it with DCP's own "
                "reader and those extensions"
            )
        if info.offset < 0 or info.length < 0 or info.offset + info.length > self._size:
            problem = (
                f"the checkpoint has it at bytes {info.offset} to {info.offset + info.length}, but the file has "
                f"{self._size}: it was cut short, or it is another save's; load another checkpoint"
            )
            raise CorruptFileError(self._path, name, problem)
        self._infos[item.storage_index] = info
        self._items.setdefault(item.storage_index, []).append(item)

    def run(self, planner: LoadPlanner) -> None:
        """Fill everything that was added. CorruptFileError names the damaged item."""
        buffered: list[ReadRequest] = []
        in_place: dict[str, list[tuple[ReadRequest, torch.Tensor]]] = {}
        located = [(request, request.target(planner, self._format)) for request in self.locate()]
        overlapping = _overlapping([target for _, target in located if target is not None])
        for request, target in located:
            if target is None or id(target) in overlapping:
                buffered.append(request)
            else:
                in_place.setdefault(target.device.type, []).append((request, target))
        for targets in in_place.values():
            for pairs in batches(targets, _bytes_at_ends, _BUFFER_BYTES):
                try:
                    self._read_in_place(pairs)
                finally:
                    for _, target in pairs:
                        mark_overwritten(target)
                for request, target in pairs:
                    planner.commit_tensor(request.items[0], target)
        for batch in batches(buffered, lambda request: request.stored.nbytes, _BUFFER_BYTES):
            self._read_buffered(batch, planner)

    def locate(self) -> list[ReadRequest]:
        """Where everything that was added lies in the file, sorted. CorruptFileError names an item that is damaged."""
        found: list[ReadRequest] = []
        foreign: list[Entry] = []
        foreign_items = []
        for index, info in self._infos.items():
            items = self._items[index]
            stored = annotation(info, index.fqn)
            if stored is not None:
                self._check_annotation(info, stored)
            elif items[0].type == LoadItemType.BYTE_IO:
                stored = Stored(index.fqn, info.offset, info.length, None)
            else:
                foreign.append(Entry(index.fqn, info.offset, info.length))
                foreign_items.append(items)
                continue
            found.append(ReadRequest(stored, items))
        found += map(ReadRequest, locate_tensors(self._path, self._fd, foreign), foreign_items)
        found = [request.shrink(self._checks(request.stored)) for request in found]
        return sorted(found, key=lambda request: request.stored.offset)

    def _checks(self, stored: Stored) -> bool:
        return self._verify and stored.crc is not None

    def _check_annotation(self, info: Any, stored: Stored) -> None:
        if not info.offset <= stored.offset <= stored.offset + stored.nbytes <= info.offset + info.length:
            problem = (
                f"its bytes are said to be {stored.offset} to {stored.offset + stored.nbytes}, outside its item at "
                f"{info.offset} to {info.offset + info.length}: the metadata was altered"
            )
            raise CorruptFileError(self._path, stored.name, problem)
        if stored.blocks is not None and not (stored.crc is None or stored.blocks.are_of(stored.nbytes, stored.crc)):
            problem = "the CRC-32s of its blocks do not make that of its item: the metadata was altered"
            raise CorruptFileError(self._path, stored.name, problem)

    def _read_in_place(self, pairs: Sequence[tuple[ReadRequest, torch.Tensor]]) -> None:
        """Read into tensors; blocks of which they need a part into a buffer first."""
        with translate_native_errors(self._path):
            buffer = Mapping(max(sum(map(_bytes_at_ends, pairs)), 1))
        used, extents, read, copies = 0, [], [], []
        for request, target in pairs:
            storage, device = target.untyped_storage(), target.device.type
            address = storage.data_ptr() + storage_offset_bytes(target)
            for piece in request.pieces():
                if piece.is_wanted():
                    extents.append(self._extent_at(piece.stored, address + piece.at, device, storage))
                else:
                    at = buffer.address + used
                    extents.append(self._extent_at(piece.stored, at, device, buffer))
                    copies.append((address + piece.at, at + piece.skip, piece.nbytes))
                    used += piece.stored.nbytes
                read.append(piece.stored)
        self._read(extents, read)
        for to, source, nbytes in copies:
            view(to, nbytes)[:] = view(source, nbytes)

    def _read(self, extents: list[Extent], read_items: Sequence[Stored]) -> None:
        """Read extents, and compare them with the CRC-32s that are known."""
        with shown(self._progress, f"loading {os.path.basename(self._path)}") as on_progress:
            read, values = read_extents(
                self._path, self._fd, self._size, extents, None, self._policy, on_progress, self._format
            )
        transfer = replace(read, verified=all(extent.checksum for extent in extents))
        publish(transfer)
        logger.info(
            "loaded %d bytes in %.3f s (%.0f MB/s) by %s, %s: %s",
            transfer.nbytes, transfer.seconds, transfer.bandwidth / 1e6, transfer.tool, transfer.route, self._path,
        )  # fmt: skip
        for stored, extent, value in zip(read_items, extents, values, strict=True):
            if extent.checksum and value != stored.crc:
                raise mismatch(self._path, stored, value)

    def _extent_at(self, stored: Stored, address: int, device: str, owner: Any) -> Extent:
        checked = self._checks(stored)
        return Extent(stored.offset, stored.nbytes, address, checked, device, owner, stored.name)

    def _read_buffered(self, batch: Sequence[ReadRequest], planner: LoadPlanner) -> None:
        offsets, total = [], 0
        for request in batch:
            offsets.append(total)
            total += -(-request.stored.nbytes // _ALIGNMENT) * _ALIGNMENT
        with translate_native_errors(self._path):
            memory = Mapping(max(total, 1))
        extents = [
            self._extent_at(request.stored, memory.address + offset, "cpu", memory)
            for request, offset in zip(batch, offsets, strict=True)
        ]
        filled = [number for number, extent in enumerate(extents) if extent.nbytes]
        if filled:
            self._read([extents[number] for number in filled], [batch[number].stored for number in filled])
        for request, offset in zip(batch, offsets, strict=True):
            self._copy_out(request, memory, offset, planner)

    def _copy_out(self, request: ReadRequest, memory: Mapping, offset: int, planner: LoadPlanner) -> None:
        stored = request.stored
        data = view(memory.address + offset, stored.nbytes)
        if self._verify and stored.crc is None and stored.dtype is None:
            check(self._path, stored.name, data)
        source: torch.Tensor | None = None
        for item in request.items:
            if item.type == LoadItemType.BYTE_IO:
                self._load_bytes(item, data, planner)
                continue
            if source is None:
                source = self._tensor(stored, memory, offset, data)
            target = planner.resolve_tensor(item).detach()
            target.copy_(self._part(request, source, item, target))
            planner.commit_tensor(item, target)

    def _load_bytes(self, item: ReadItem, data: memoryview, planner: LoadPlanner) -> None:
        try:
            planner.load_bytes(item, io.BytesIO(data))
        except RuntimeError as error:
            if "PytorchStreamReader" not in str(error):
                raise
            raise CorruptFileError(
                self._path, item.storage_index.fqn, f"it is not a complete zip file: {shortened(error)}"
            ) from error

    def _part(self, request: ReadRequest, source: torch.Tensor, item: ReadItem, target: torch.Tensor) -> torch.Tensor:
        """Return the part of the tensor that was read that ``item`` asks for."""
        try:
            part = narrow_tensor_by_index(source, request.offsets(item), item.lengths)
        except (IndexError, RuntimeError):
            part = source
        if part.size() == target.size():
            return part
        problem = (
            f"the stored tensor has shape {quoted(list(source.shape))}; its part {quoted(list(item.lengths))} from "
            f"{quoted(list(request.offsets(item)))} was expected to fill {quoted(list(target.shape))}: the data does "
            "not match the metadata"
        )
        raise CorruptFileError(self._path, request.stored.name, problem)

    def _tensor(self, stored: Stored, memory: Mapping, offset: int, data: memoryview) -> torch.Tensor:
        try:
            if stored.dtype is not None:
                nbytes = stored.nbytes
                return stored.tensor(bytes_of(memory, offset, nbytes) if nbytes else torch.empty(0, dtype=torch.uint8))
            tensor: torch.Tensor = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            return tensor
        except MemoryError:
            raise
        except Exception as error:  # damaged bytes, or a shape that does not match them
            if isinstance(error, pickle.UnpicklingError) and _NOT_ALLOWED in str(error):
                raise  # torch's message says how to allow the class
            raise CorruptFileError(self._path, stored.name, f"it makes no tensor: {shortened(error)}") from error


def mismatch(path: str, stored: Stored, value: int) -> CorruptFileError:
    """The error for an item whose bytes have another CRC-32, ``value``, than is stored."""
    problem = (
        f"its {exact_size(stored.nbytes)} at offset {stored.offset} have the CRC-32 {value:08x}, expected "
        f"{stored.crc:08x}: the file was damaged after it was written; load another checkpoint, or "
        f"restore the file from a copy{AS_IT_IS}"
    )
    return CorruptFileError(path, stored.name, problem)


def _bytes_at_ends(pair: tuple[ReadRequest, torch.Tensor]) -> int:
    """The bytes of the blocks of which a tensor that is read into place needs a part."""
    if pair[0].whole is None:
        return 0
    return sum(piece.stored.nbytes for piece in pair[0].pieces() if not piece.is_wanted())


def _overlapping(targets: Sequence[torch.Tensor]) -> set[int]:
    """Return the ids of contiguous tensors that overlap an earlier one in memory: reading both at once spoils CRCs."""
    overlapping, end = set[int](), 0
    for target in sorted(targets, key=operator.methodcaller("data_ptr")):
        if target.data_ptr() < end:
            overlapping.add(id(target))
        end = max(end, target.data_ptr() + target.nbytes)
    return overlapping
