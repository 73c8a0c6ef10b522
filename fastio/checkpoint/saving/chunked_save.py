"""Saves a state that is larger than the memory budget in chunks: each is copied, then written."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch

from fastio._native import Control, crc32_at, crc32_combine
from fastio.checkpoint.saving.parallel_copy import Copy, CopyBatch
from fastio.checkpoint.saving.snapshot import Snapshot, pin_for
from fastio.checkpoint.training_pause import TrainingPause
from fastio.devices import copy_errors
from fastio.engine import checksums
from fastio.engine.background_job import Progress
from fastio.engine.executor import Execution, Outcome, execute
from fastio.engine.tool_selection import plan_transfer
from fastio.files.atomic_file import AtomicFile
from fastio.formats.detect import PT
from fastio.formats.layout import Layout
from fastio.memory.raw_memory import host_bytes, storage_bytes
from fastio.results import SaveResult
from fastio.transports.transport import SAVE, Extent, WriteRequest

LEAST = 32 << 20
# Chunks begin at multiples of this. Transports' block sizes divide it, so no block spans two chunks.
_BLOCK = 4 << 20


class ChunkMemory(NamedTuple):
    """Memory of ``nbytes`` for the chunks; training pauses until all are copied."""

    memory: Snapshot
    nbytes: int
    pause: TrainingPause


def save_in_chunks(
    layout: Layout, path: str, policy: Any, chunk_memory: ChunkMemory, progress: Progress | None
) -> tuple[SaveResult, Sequence[int]]:
    """Save to a path, otherwise as :func:`fastio.engine.save.write_layout` does.

    Storages must not change during ``chunk_memory.pause``. CheckpointError if the pause was broken before everything
    was copied.
    """
    started = time.perf_counter()
    host = {torch.device("cpu")}  # the tools write copies in host memory, whatever device the storages are on
    storages = len(layout.extents) // 2
    plan = plan_transfer(SAVE, path, PT, host, layout.payload, storages, policy, "extents", durable=True)
    work = partial(_save, layout, path, chunk_memory, progress)
    result, values = execute(plan, work, started)
    return replace(cast(SaveResult, result), reason="the state is larger than the memory budget"), values


def _save(
    layout: Layout, path: str, chunk_memory: ChunkMemory, progress: Progress | None, execution: Execution
) -> Outcome[Sequence[int]]:
    chunk = max(chunk_memory.nbytes - len(layout.literal), LEAST) // _BLOCK * _BLOCK
    address = chunk_memory.memory.reserve(min(chunk, layout.size), pin_for(layout.devices))
    values = [0] * len(layout.extents)
    layout.synchronize()
    with AtomicFile(path) as new:
        new.allocate(layout.size)
        for begin in range(0, layout.size, chunk):
            end = min(begin + chunk, layout.size)
            extents = list(_copied(layout, begin, end, address, values))
            chunk_memory.pause.require()
            if end == layout.size:
                chunk_memory.pause.open()
            control = Control()
            control.still = True
            request = WriteRequest(path, new.fd, layout.size, extents, control=control)
            moved = execution.move(request)
            if progress is not None:
                progress(end, layout.size)
        new.commit(durable=True)
    return Outcome(moved, values, verified=True)


def _copied(layout: Layout, begin: int, end: int, address: int, values: list[int]) -> Iterator[Extent]:
    """Copy the storages of the file's part from ``begin`` to ``end`` to ``address``, update CRCs, yield the extents."""
    parts = []
    for index, extent in enumerate(layout.extents):
        first, last = max(extent.offset, begin), min(extent.offset + extent.nbytes, end)
        if first < last:
            parts.append((index, first - extent.offset, last - first))
    targets = {index: address + layout.extents[index].offset + start - begin for index, start, _ in parts}
    copies = []
    for index, start, nbytes in parts:
        extent = layout.extents[index]
        if extent.checksum and extent.device == "cpu":
            copies.append(Copy(index, targets[index], extent.address + start, nbytes))
        elif extent.checksum:
            first = extent.address - extent.owner.data_ptr() + start
            with copy_errors():
                host_bytes(targets[index], nbytes).copy_(storage_bytes(extent.owner)[first : first + nbytes])
    batch = CopyBatch(copies)
    batch.run()
    for index, _, nbytes in parts:
        if layout.extents[index].checksum:
            crc = batch.crcs.get(index)  # None: it was copied from a device
            own = crc32_at(targets[index], nbytes) if crc is None else crc
            values[index] = crc32_combine(values[index], own, nbytes)
    checksums.patch(layout, values)  # CRCs of storages that are not complete yet are patched again later
    for index, start, nbytes in parts:
        extent = layout.extents[index]
        source = targets[index] if extent.checksum else extent.address + start
        yield Extent(extent.offset + start, nbytes, source, False, "cpu", extent.owner, extent.name)
