"""Writes a step by several ranks: each writes its file into an unpublished folder, then the first one publishes it.

Nothing waits for a rank while it holds the memory of a copy: what is sent are plans and reports.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch.distributed.checkpoint.metadata import Metadata

from fastio._native import crc32
from fastio.checkpoint.folder import manifest
from fastio.checkpoint.folder.manifest import File, Manifest
from fastio.checkpoint.folder.step_folders import FIRST_MARK, leftovers, remove_all
from fastio.checkpoint.folder.unpublished_step import UnpublishedStep
from fastio.checkpoint.ranks.gloo import Gloo
from fastio.checkpoint.ranks.messages import Messages, tried
from fastio.checkpoint.ranks.shared_folder import comes_true
from fastio.checkpoint.saving.rank_part import PartWriter, Report
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
from fastio.checkpoint.saving.writing import WrittenStep
from fastio.distributed import metadata as metadata_file
from fastio.errors import CheckpointError, RankError
from fastio.files.atomic_file import AtomicFile
from fastio.files.checkpoint_folders import DCP_METADATA
from fastio.results import SaveResult
from fastio.runtime.gc_pause import gc_paused

_log = logging.getLogger("fastio.checkpoint")
_APPEARS_SECONDS = 30.0  # within which a folder that another machine made is seen through a network file system


class _Order(NamedTuple):
    """What the first rank tells another one to write: into which folder, and which of its items."""

    name: str
    kept: list[int]


class RankStepWriter:
    """Writes steps together with the other ranks, one after the other.

    ``next_order`` and ``hide`` are called on the first rank: for the number of a save, and once it is visible.
    """

    def __init__(self, connections: Gloo, next_order: Callable[[], int], hide: Callable[[], object]) -> None:
        self.connections, self.messages = connections, Messages(connections)
        self.next_order, self.hide = next_order, hide
        self.part = PartWriter(connections.rank)
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

    def write(self) -> WrittenStep:
        try:
            return self._write()
        except BaseException:
            self._writer.part.discard()
            if self._new is not None:
                self._new.discard()
            raise
        finally:
            self._task.staged_is_free()
            self._writer.part.close()

    def _write(self) -> WrittenStep:
        state: RankState = self._task.content
        part = self._writer.part
        with gc_paused():
            planned, error = tried(lambda: self._writer.local_planner.plan(state))
        plan, sent = planned if planned is not None else (None, None)
        plans = self._messages.gathered(sent, error)
        orders, error = tried(lambda: self._ordered(plans)) if plans is not None else (None, None)
        order: _Order = self._messages.scattered(orders, error)
        self._writer.local_planner.keep()
        written, error = tried(lambda: self._write_own(plan, order))
        self._task.staged_is_free()
        report, result = written if written is not None else (None, None)
        reports = self._messages.gathered(report, error)
        made, error = tried(lambda: self._published(reports)) if reports is not None else (None, None)
        made = self._messages.scattered(None if made is None else [made] * self._world, error)
        assert report is not None
        assert result is not None
        part.note(made.order, state, report)
        return WrittenStep(made, result, part.linked_bytes)

    def _ordered(self, plans: list[SentPlan] | RankError) -> list[_Order]:
        """Plan for all ranks, and make the folder of the step."""
        if isinstance(plans, RankError):
            raise plans
        with gc_paused():
            self._plan = self._writer.global_planner.plan(plans)
        self._order = self._writer.next_order()  # removes what dead writers left
        self._new = UnpublishedStep(self._task.folder, self._task.step)
        return [_Order(os.path.basename(self._new.path), kept) for kept in self._plan.kept]

    def _write_own(self, plan: LocalPlan | None, order: _Order) -> tuple[Report, SaveResult]:
        assert plan is not None
        path = os.path.join(self._task.folder.path, order.name)
        _wait_for_folder(path)
        return self._writer.part.write(self._task, [plan.plan.items[number].index for number in order.kept], path)

    def _published(self, reports: list[Report] | RankError) -> Manifest:
        """Write DCP's metadata and the manifest, and publish the step."""
        if isinstance(reports, RankError):
            raise reports
        assert self._plan is not None
        assert self._new is not None
        task = self._task
        made = publish(self._new, task.step, self._order, task.metadata, self._plan.metadata, reports)
        self._new = None
        self._writer.hide()
        return made


def publish(
    new: UnpublishedStep,
    step: int,
    order: int,
    user_metadata: dict[str, Any],
    metadata: Metadata,
    reports: Sequence[Report],
) -> Manifest:
    """Publish a step, whose parts are durable, with DCP's metadata and the manifest; return that."""
    metadata.storage_data = {one.index: one.storage_data for report in reports for one in report.results}
    data = metadata_file.pickled(metadata)
    with AtomicFile(os.path.join(new.path, DCP_METADATA)) as file:
        file.fill(data)
        file.commit(durable=True)
    files = (File(DCP_METADATA, len(data), crc32(data)), *(file for report in reports for file in report.files))
    saved = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ranks = len(reports)
    made = Manifest(step, order, saved, tensor_bytes(metadata), files, {}, user_metadata, manifest.DCP, ranks)
    with AtomicFile(os.path.join(new.path, manifest.NAME)) as file:
        manifest.write(file, made)
    names = {file.name for file in files}
    remove_all(new.path, leftovers(new.path, names) - {FIRST_MARK})
    new.publish()
    slowest = max(range(ranks), key=lambda rank: reports[rank].seconds)
    _log.info("step %d: rank %d wrote for the longest time, %.2f s", step, slowest, reports[slowest].seconds)
    return made


def _wait_for_folder(path: str) -> None:
    """Return when a folder is seen that the first rank made. CheckpointError if that takes too long."""
    if not comes_true(lambda: os.path.isdir(path), _APPEARS_SECONDS):
        raise CheckpointError(
            f"{path}: this rank does not see the folder that rank 0 made: all ranks must write to one file system, "
            "as a network file system under the same path"
        )
