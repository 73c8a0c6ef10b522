"""A state that is larger than the memory for it: it passes through in pieces, each copied, then written."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from fastio import _native
from fastio._native import Control
from fastio.checkpoint.saving.parallel_copy import Copy, copy_all
from fastio.checkpoint.saving.snapshot import Snapshot
from fastio.checkpoint.training_pause import TrainingPause
from fastio.engine import checksums
from fastio.engine.background_job import Progress
from fastio.engine.executor import Execution
from fastio.engine.operation import Operation
from fastio.engine.tool_selection import checksumming_tools
from fastio.engine.transport_errors import call_transport
from fastio.files.atomic_file import AtomicFile
from fastio.formats.detect import PT
from fastio.formats.layout import Layout
from fastio.memory.raw_memory import host_bytes, storage_bytes
from fastio.memory.staging_buffers import copy_errors
from fastio.results import SaveResult
from fastio.transports.transport import SAVE, Extent, WriteRequest

LEAST = 32 << 20
# Pieces begin at multiples of it: transports write blocks of a size that divides it, so no block has bytes of two.
_BLOCK = 4 << 20


class Passage(NamedTuple):
    """Memory of ``nbytes`` for the pieces, while training stands still: until all is copied."""

    memory: Snapshot
    nbytes: int
    still: TrainingPause


def save_in_pieces(
    layout: Layout, path: str, policy: Any, passage: Passage, progress: Progress | None
) -> tuple[SaveResult, Sequence[int]]:
    """As :func:`fastio.engine.save.save_layout`, of storages that must not change while ``passage.still`` lasts.

    CheckpointError if it was broken before all was copied.
    """
    started = time.perf_counter()
    host = frozenset({"cpu"})  # the tools write copies in host memory, whatever device the storages are on
    execution = Execution(
        Operation(
            SAVE, path, PT, host, layout.payload, len(layout.extents) // 2, policy, started, True,
            among=checksumming_tools(SAVE, host),
        )
    )  # fmt: skip
    room = max(passage.nbytes - len(layout.literal), LEAST) // _BLOCK * _BLOCK
    address = passage.memory.room(min(room, layout.size), pin="cuda" in layout.devices)
    values = [0] * len(layout.extents)
    layout.synchronize()
    with AtomicFile(path) as new:
        new.allocate(layout.size)
        for begin in range(0, layout.size, room):
            end = min(begin + room, layout.size)
            extents = list(_copied(layout, begin, end, address, values))
            passage.still.require()
            if end == layout.size:
                passage.still.open()
            control = Control()
            control.still = True
            request = WriteRequest(path, new.fd, layout.size, extents, control=control)
            moved = execution.run(partial(call_transport, request=request))
            if progress is not None:
                progress(end, layout.size)
        new.commit(durable=True)
    return execution.saved(moved, reason="the state is larger than the memory budget"), values


def _copied(layout: Layout, begin: int, end: int, address: int, values: list[int]) -> Iterator[Extent]:
    """The part of the file from ``begin`` to ``end``, its storages copied to ``address`` and their CRCs filled in."""
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
            at = extent.address - extent.owner.data_ptr() + start
            with copy_errors():
                host_bytes(targets[index], nbytes).copy_(storage_bytes(extent.owner)[at : at + nbytes])
    copy_all(copies)
    for index, _, nbytes in parts:
        if layout.extents[index].checksum:
            values[index] = _native.crc32_at(targets[index], nbytes, values[index])
    checksums.patch(layout, values)  # those of storages that are still to come are put in again later
    for index, start, nbytes in parts:
        extent = layout.extents[index]
        at = targets[index] if extent.checksum else extent.address + start
        yield Extent(extent.offset + start, nbytes, at, False, "cpu", extent.owner, extent.name)
