"""Filling the tensors of a rank from one data file: the fewest transfers, the fewest copies.

What lies in memory as it lies in the file is read straight into place, all of it in one batch. The rest (other dtypes
and strides; objects; parts, after ranks have become more or fewer, of what must be checked as a whole) is read into
memory of its own, a bounded amount at a time, checked, and copied from there.
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

from fastio import _native
from fastio.distributed.dcp_zip_items import Entry, check, survey
from fastio.distributed.read_requests import Wanted, batches
from fastio.distributed.stored_items import FORMAT, Stored, noted
from fastio.engine.load import read_extents
from fastio.engine.progress import shown
from fastio.errors import CorruptFileError, UnsupportedError, quoted, shortened
from fastio.formats.layout import storage_offset_bytes
from fastio.memory.load_buffers import bytes_of
from fastio.memory.raw_memory import overwritten, view
from fastio.results import publish
from fastio.runtime.native_errors import translate_native_errors
from fastio.transports.transport import Extent

# Bytes that are read aside at a time; a larger item is read alone.
_ASIDE = 256 << 20
_ALIGNMENT = 64
_NOT_ALLOWED = "Unsupported global"  # what torch says of a class that weights_only=True does not take

logger = logging.getLogger("fastio.distributed")


class Filling:
    """What one rank wants of one open data file of ``size`` bytes."""

    def __init__(self, path: str, fd: int, size: int, policy: Any, verify: bool, progress: Any) -> None:
        self._path, self._fd, self._size = path, fd, size
        self._policy, self._verify, self._progress = policy, verify, progress
        self._infos: dict[Any, Any] = {}
        self._items: dict[Any, list[ReadItem]] = {}

    def add(self, item: ReadItem, info: Any) -> None:
        """One more request, and where DCP's metadata says that it is stored."""
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
        """Fill everything that was added. CorruptFileError names what is damaged."""
        aside: list[Wanted] = []
        straight: dict[str, list[tuple[Wanted, torch.Tensor]]] = {}
        located = [(want, want.target(planner)) for want in self._locate()]
        shared = _sharing([target for _, target in located if target is not None])
        for want, target in located:
            if target is None or id(target) in shared:
                aside.append(want)
            else:
                straight.setdefault(target.device.type, []).append((want, target))
        for pairs in straight.values():
            try:
                self._read([self._extent(want.stored, target) for want, target in pairs], [want for want, _ in pairs])
            finally:
                for _, target in pairs:
                    overwritten(target)
            for want, target in pairs:
                planner.commit_tensor(want.items[0], target)
        for batch in batches(aside, _ASIDE):
            self._read_aside(batch, planner)

    def _locate(self) -> list[Wanted]:
        found: list[Wanted] = []
        foreign: list[Entry] = []
        wanting = []
        for index, info in self._infos.items():
            items = self._items[index]
            stored = noted(info, index.fqn)
            if stored is not None:
                self._check_note(info, stored)
            elif items[0].type == LoadItemType.BYTE_IO:
                stored = Stored(index.fqn, info.offset, info.length, None)
            else:
                foreign.append(Entry(index.fqn, info.offset, info.length))
                wanting.append(items)
                continue
            found.append(Wanted(stored, items))
        found += map(Wanted, survey(self._path, self._fd, foreign), wanting)
        # What is to be compared with its CRC-32 is read whole.
        found = [want if self._checks(want.stored) else want.least() for want in found]
        return sorted(found, key=lambda want: want.stored.offset)

    def _checks(self, stored: Stored) -> bool:
        return self._verify and stored.crc is not None

    def _check_note(self, info: Any, stored: Stored) -> None:
        if not info.offset <= stored.offset <= stored.offset + stored.nbytes <= info.offset + info.length:
            problem = (
                f"its bytes are said to be {stored.offset} to {stored.offset + stored.nbytes}, outside its item at "
                f"{info.offset} to {info.offset + info.length}: the metadata was altered"
            )
            raise CorruptFileError(self._path, stored.name, problem)

    def _read(self, extents: list[Extent], wanted: Sequence[Wanted]) -> None:
        """Read, and compare with the CRC-32s that are known."""
        with shown(self._progress, f"loading {os.path.basename(self._path)}") as told:
            read, values = read_extents(self._path, self._fd, self._size, extents, None, self._policy, told, FORMAT)
        transfer = replace(read, verified=all(extent.checksum for extent in extents))
        publish(transfer)
        logger.info(
            "loaded %d bytes in %.3f s (%.0f MB/s) by %s, %s: %s",
            transfer.nbytes, transfer.seconds, transfer.bandwidth / 1e6, transfer.tool, transfer.route, self._path,
        )  # fmt: skip
        for want, extent, value in zip(wanted, extents, values, strict=True):
            if extent.checksum and value != want.stored.crc:
                problem = (
                    f"its {extent.nbytes} bytes at offset {extent.offset} have the CRC-32 {value:08x}, expected "
                    f"{want.stored.crc:08x}: the file was damaged after it was written; load another checkpoint, or "
                    "restore the file from a copy (Reader(verify=False) loads it as it is)"
                )
                raise CorruptFileError(self._path, want.stored.name, problem)

    def _extent(self, stored: Stored, target: torch.Tensor) -> Extent:
        storage = target.untyped_storage()
        address = storage.data_ptr() + storage_offset_bytes(target)
        return self._extent_at(stored, address, target.device.type, storage)

    def _extent_at(self, stored: Stored, address: int, device: str, owner: Any) -> Extent:
        checked = self._checks(stored)
        return Extent(stored.offset, stored.nbytes, address, checked, device, owner, stored.name)

    def _read_aside(self, batch: Sequence[Wanted], planner: LoadPlanner) -> None:
        places, total = [], 0
        for want in batch:
            places.append(total)
            total += -(-want.stored.nbytes // _ALIGNMENT) * _ALIGNMENT
        with translate_native_errors(self._path):
            memory = _native.Mapping(max(total, 1))
        extents = [
            self._extent_at(want.stored, memory.address + place, "cpu", memory)
            for want, place in zip(batch, places, strict=True)
        ]
        filled = [number for number, extent in enumerate(extents) if extent.nbytes]
        if filled:
            self._read([extents[number] for number in filled], [batch[number] for number in filled])
        for want, place in zip(batch, places, strict=True):
            self._hand_out(want, memory, place, planner)

    def _hand_out(self, want: Wanted, memory: _native.Mapping, place: int, planner: LoadPlanner) -> None:
        stored = want.stored
        data = view(memory.address + place, stored.nbytes)
        if self._verify and stored.crc is None and stored.dtype is None:
            check(self._path, stored.name, data)
        source: torch.Tensor | None = None
        for item in want.items:
            if item.type == LoadItemType.BYTE_IO:
                self._load_bytes(item, data, planner)
                continue
            if source is None:
                source = self._tensor(stored, memory, place, data)
            target = planner.resolve_tensor(item).detach()
            target.copy_(self._part(want, source, item, target))
            planner.commit_tensor(item, target)

    def _load_bytes(self, item: ReadItem, data: memoryview, planner: LoadPlanner) -> None:
        try:
            planner.load_bytes(item, io.BytesIO(data))
        except RuntimeError as error:
            if "PytorchStreamReader" not in str(error):
                raise
            raise CorruptFileError(
                self._path, item.storage_index.fqn, f"it is no whole zip file: {shortened(error)}"
            ) from error

    def _part(self, want: Wanted, source: torch.Tensor, item: ReadItem, target: torch.Tensor) -> torch.Tensor:
        """What an item wants of what was read."""
        try:
            part = narrow_tensor_by_index(source, want.offsets(item), item.lengths)
        except (IndexError, RuntimeError):
            part = source
        if part.size() == target.size():
            return part
        problem = (
            f"what is stored has shape {quoted(list(source.shape))}; of it {quoted(list(item.lengths))} from "
            f"{quoted(list(want.offsets(item)))} was expected to fill {quoted(list(target.shape))}: the data is not "
            "the metadata's"
        )
        raise CorruptFileError(self._path, want.stored.name, problem)

    def _tensor(self, stored: Stored, memory: _native.Mapping, place: int, data: memoryview) -> torch.Tensor:
        try:
            if stored.dtype is not None:
                nbytes = stored.nbytes
                return stored.tensor(bytes_of(memory, place, nbytes) if nbytes else torch.empty(0, dtype=torch.uint8))
            tensor: torch.Tensor = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            return tensor
        except MemoryError:
            raise
        except Exception as error:  # damaged bytes, or a shape that they do not make
            if isinstance(error, pickle.UnpicklingError) and _NOT_ALLOWED in str(error):
                raise  # torch's own words say how to allow the class
            raise CorruptFileError(self._path, stored.name, f"it makes no tensor: {shortened(error)}") from error


def _sharing(targets: Sequence[torch.Tensor]) -> set[int]:
    """Of contiguous tensors that share bytes all but one, by id: two that are read at a time spoil the checksums."""
    found, end = set[int](), 0
    for target in sorted(targets, key=operator.methodcaller("data_ptr")):
        if target.data_ptr() < end:
            found.add(id(target))
        end = max(end, target.data_ptr() + target.nbytes)
    return found
