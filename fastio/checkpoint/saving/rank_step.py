"""Writes a step by several ranks: each writes its file into an unpublished folder, then the first one publishes it.

Nothing waits for a rank while it holds the memory of a copy: what is sent are plans and reports.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import NamedTuple

from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from fastio._native import crc32
from fastio.checkpoint.folder import manifest
from fastio.checkpoint.folder.manifest import File, Manifest
from fastio.checkpoint.folder.unpublished_step import UnpublishedStep
from fastio.checkpoint.ranks.gloo import Gloo
from fastio.checkpoint.ranks.messages import Messages, tried
from fastio.checkpoint.ranks.shared_folder import comes_true
from fastio.checkpoint.saving.file_checksum import of_file
from fastio.checkpoint.saving.rank_links import LinkedItems, WrittenPart, find_unchanged, link_files, views_of
from fastio.checkpoint.saving.rank_plans import (
    GlobalPlan,
    GlobalPlanner,
    LocalPlan,
    LocalPlanner,
    SentPlan,
    tensor_bytes,
)
from fastio.checkpoint.saving.rank_state import RankState
from fastio.checkpoint.saving.step_kinds import RankTask
from fastio.checkpoint.saving.writing import WrittenStep, check_file
from fastio.distributed import metadata as metadata_file
from fastio.distributed.data_file import DataFile
from fastio.distributed.item_checksums import hashing_blocks, results_of
from fastio.distributed.items import Image, ImageBuilder
from fastio.distributed.stored_items import FORMAT
from fastio.engine.save import write_layout
from fastio.errors import CheckpointError, RankError
from fastio.files.atomic_file import AtomicFile
from fastio.files.checkpoint_folders import DCP_METADATA
from fastio.files.open_file import opened
from fastio.results import SaveResult
from fastio.runtime.gc_pause import gc_paused

_log = logging.getLogger("fastio.checkpoint")
_APPEARS_SECONDS = 30.0  # within which a folder that another machine made is seen through a network file system


class _Order(NamedTuple):
    """What the first rank tells another one to write: into which folder, and which of its items."""

    name: str
    kept: list[int]


class _Report(NamedTuple):
    """What a rank has in a step, durably, and how long it wrote."""

    files: list[File]
    results: list[WriteResult]
    seconds: float


class RankStepWriter:
    """Writes steps together with the other ranks, one after the other.

    ``next_order`` and ``hide`` are called on the first rank: for the number of a save, and once it is visible.
    """

    def __init__(self, connections: Gloo, next_order: Callable[[], int], hide: Callable[[], object]) -> None:
        self.connections, self.messages = connections, Messages(connections)
        self.next_order, self.hide = next_order, hide
        self.last: WrittenPart | None = None  # what this rank has in the step that was written last
        self.local_planner, self.global_planner = LocalPlanner(connections.rank == 0), GlobalPlanner()

    def write(self, task: RankTask) -> WrittenStep:
        """Write a step; ``task.staged_is_free`` is called when the copy is needed no more.

        RankError on all ranks if one failed: nothing of the step is left then. RankLostError if one ended.
        """
        return _RankStep(task, self).write()


class _RankStep:
    def __init__(self, task: RankTask, writer: RankStepWriter) -> None:
        self._task, self._writer, self._messages = task, writer, writer.messages
        self._order = 0
        self._rank, self._world = writer.connections.rank, writer.connections.world
        self._new: UnpublishedStep | None = None
        self._plan: GlobalPlan | None = None
        self._file: DataFile | None = None
        self._linked_bytes = 0

    def write(self) -> WrittenStep:
        try:
            return self._write()
        except BaseException:
            if self._file is not None:
                self._file.discard()
            if self._new is not None:
                self._new.discard()
            raise
        finally:
            self._task.staged_is_free()
            if self._file is not None:
                self._file.close()

    def _write(self) -> WrittenStep:
        state: RankState = self._task.content
        with gc_paused():
            planned, error = tried(lambda: self._writer.local_planner.plan(state))
        plan, sent = planned if planned is not None else (None, None)
        plans = self._messages.gathered(sent, error)
        orders, error = tried(lambda: self._ordered(plans)) if plans is not None else (None, None)
        order: _Order = self._messages.scattered(orders, error)
        self._writer.local_planner.keep()
        written, error = tried(lambda: self._write_own(state, plan, order))
        self._task.staged_is_free()
        report, result = written if written is not None else (None, None)
        reports = self._messages.gathered(report, error)
        made, error = tried(lambda: self._published(reports)) if reports is not None else (None, None)
        made = self._messages.scattered(None if made is None else [made] * self._world, error)
        assert report is not None
        assert result is not None
        self._writer.last = WrittenPart(made.order, views_of(state), report.files, report.results)
        return WrittenStep(made, result, self._linked_bytes)

    def _ordered(self, plans: list[SentPlan] | RankError) -> list[_Order]:
        """Plan for all ranks, and make the folder of the step."""
        if isinstance(plans, RankError):
            raise plans
        with gc_paused():
            self._plan = self._writer.global_planner.plan(plans)
        self._order = self._writer.next_order()  # removes what dead writers left
        self._new = UnpublishedStep(self._task.folder, self._task.step)
        return [_Order(os.path.basename(self._new.path), kept) for kept in self._plan.kept]

    def _write_own(self, state: RankState, plan: LocalPlan | None, order: _Order) -> tuple[_Report, SaveResult]:
        """Write this rank's file, durably, and check what the disk has of it."""
        assert plan is not None
        path = os.path.join(self._task.folder.path, order.name)
        _wait_for_folder(path)
        with gc_paused():
            items = [plan.plan.items[number] for number in order.kept]
            linked = self._linked(state, items, path)
            elsewhere = {result.index for result in linked.results}
            image = _lay_out(state, [item for item in items if item.index not in elsewhere])
        self._file = file = DataFile(path, f"__{self._rank}_")
        task = self._task
        with hashing_blocks(image, state.by_tensor(task.block_crcs)) as block_crcs:
            result, values = write_layout(
                image.layout, file, FORMAT, task.policy, True, task.progress, task.is_snapshot,
                state.by_tensor(task.crcs),
            )  # fmt: skip
        written = File(file.name, image.layout.size, of_file(image.layout, values))
        with opened(file.path) as (fd, size):
            check_file(file.path, fd, size, written, task.read_back)
        if task.chunk_memory is not None:  # what was written is the live state
            task.chunk_memory.pause.require()
        results = [*results_of(image, file.name, values, block_crcs), *linked.results]
        return _Report([written, *linked.files], results, result.seconds), result

    def _linked(self, state: RankState, items: list[WriteItem], path: str) -> LinkedItems:
        """Link the files of unchanged items into the step's folder; nothing is linked if that fails."""
        base, last = self._task.base, self._writer.last
        if base is None or last is None or last.order != base.manifest.order:
            return LinkedItems()
        found = find_unchanged(last, base.unchanged(), state, {item.index for item in items})
        if not link_files(found.files, self._task.folder.path_of(base.manifest.step), path):
            return LinkedItems()
        self._linked_bytes = sum(state.tensors[result.index.fqn].nbytes for result in found.results)
        return found

    def _published(self, reports: list[_Report] | RankError) -> Manifest:
        """Write DCP's metadata and the manifest, and publish the step."""
        if isinstance(reports, RankError):
            raise reports
        assert self._plan is not None
        assert self._new is not None
        task, path, metadata = self._task, self._new.path, self._plan.metadata
        metadata.storage_data = {one.index: one.storage_data for report in reports for one in report.results}
        data = metadata_file.pickled(metadata)
        with AtomicFile(os.path.join(path, DCP_METADATA)) as new:
            new.fill(data)
            new.commit(durable=True)
        files = (File(DCP_METADATA, len(data), crc32(data)), *(file for report in reports for file in report.files))
        saved = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        nbytes, ranks = tensor_bytes(metadata), self._world
        made = Manifest(task.step, self._order, saved, nbytes, files, {}, task.metadata, manifest.DCP, ranks)
        with AtomicFile(os.path.join(path, manifest.NAME)) as new:
            manifest.write(new, made)
        self._new.publish()
        slowest = max(range(ranks), key=lambda rank: reports[rank].seconds)
        _log.info("step %d: rank %d wrote for the longest time, %.2f s", task.step, slowest, reports[slowest].seconds)
        self._new = None
        self._writer.hide()
        return made


def _wait_for_folder(path: str) -> None:
    """Return when a folder is seen that the first rank made. CheckpointError if that takes too long."""
    if not comes_true(lambda: os.path.isdir(path), _APPEARS_SECONDS):
        raise CheckpointError(
            f"{path}: this rank does not see the folder that rank 0 made: all ranks must write to one file system, "
            "as a network file system under the same path"
        )


def _lay_out(state: RankState, items: list[WriteItem]) -> Image:
    builder = ImageBuilder()
    for item in items:
        name = item.index.fqn
        if name in state.objects:
            builder.add_bytes(item.index, memoryview(state.objects[name]))
        else:
            builder.add(item.index, state.tensor(name))
    return builder.build()
