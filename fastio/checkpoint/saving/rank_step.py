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
from fastio.checkpoint.ranks.meanwhile import meanwhile
from fastio.checkpoint.ranks.messages import Messages, tried
from fastio.checkpoint.saving.rank_file import RankFile, Report, Written, wait_for_folder
from fastio.checkpoint.saving.rank_images import RankImages
from fastio.checkpoint.saving.rank_links import LinkedItems, WrittenPart, linked_items, views_of
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
from fastio.errors import RankError
from fastio.files.atomic_file import AtomicFile
from fastio.files.checkpoint_folders import DCP_METADATA
from fastio.runtime.gc_pause import gc_paused

_log = logging.getLogger("fastio.checkpoint")


class _Order(NamedTuple):
    """What the first rank tells another one to write: into which folder, and which of its items."""

    name: str
    kept: list[int]


class _Late(NamedTuple):
    """What a rank has written, durably: its report, unless it told it before, and for how many seconds it wrote."""

    report: Report | None
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
        self.images = RankImages()

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
        self._file: RankFile | None = None
        self._linked = LinkedItems()
        self._expected: Report | None = None  # of this rank, which the first one knows then
        self._reports: list[Any] = []  # what each rank expects, if it does; on the first one
        self._metadata: tuple[bytes | None, Exception | None] = None, None  # DCP's, once it is pickled

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
        written, error = self._written(plan, order)
        late, error = tried(lambda: self._checked(written)) if written is not None else (None, error)
        reports = self._messages.gathered(late, error)
        made, error = tried(lambda: self._published(reports)) if reports is not None else (None, None)
        made = self._messages.scattered(None if made is None else [made] * self._world, error)
        assert written is not None
        assert late is not None
        report = late.report or self._expected
        assert report is not None
        self._writer.last = WrittenPart(made.order, views_of(state), report.files, report.results)
        return WrittenStep(made, written.result, self._linked.nbytes)

    def _ordered(self, plans: list[SentPlan] | RankError) -> list[_Order]:
        """Plan for all ranks, and make the folder of the step."""
        if isinstance(plans, RankError):
            raise plans
        with gc_paused():
            self._plan = self._writer.global_planner.plan(plans)
        self._order = self._writer.next_order()  # removes what dead writers left
        self._new = UnpublishedStep(self._task.folder, self._task.step)
        return [_Order(os.path.basename(self._new.path), kept) for kept in self._plan.kept]

    def _written(self, plan: LocalPlan | None, order: _Order) -> tuple[Written | None, Exception | None]:
        """Write this rank's file; meanwhile tell what will be in it, or the error; the first rank pickles it."""
        file, error = tried(lambda: self._laid_out(plan, order))
        told: list[Exception | None] = [error]

        def tell() -> None:
            if file is not None:
                self._expected, told[0] = tried(file.expected)
            reports = self._messages.gathered(self._expected, told[0])
            if isinstance(reports, list):
                self._reports = reports
                if None not in reports:
                    self._metadata = tried(lambda: self._pickled(reports))

        with meanwhile(self._writer.connections, tell):
            written, error = tried(file.write) if file is not None else (None, error)
            self._task.staged_is_free()  # at once: another rank may be late
        return (written, error) if told[0] is None else (None, told[0])

    def _laid_out(self, plan: LocalPlan | None, order: _Order) -> RankFile:
        assert plan is not None
        path = os.path.join(self._task.folder.path, order.name)
        wait_for_folder(path)
        state, is_snapshot = self._task.content, self._task.is_snapshot
        indices = [plan.plan.items[number].index for number in order.kept]
        self._linked = linked = linked_items(self._task, path, indices, self._writer.last)
        elsewhere = {result.index for result in linked.results}
        own = [number for number, index in zip(order.kept, indices, strict=True) if index not in elsewhere]
        image = self._writer.images.image(state, plan, own, is_snapshot)
        self._file = RankFile(self._task, path, self._rank, image, linked)
        return self._file

    def _checked(self, written: Written) -> _Late:
        assert self._file is not None
        report = self._file.checked(written, self._expected)
        return _Late(report if self._expected is None else None, written.result.seconds)

    def _pickled(self, reports: Sequence[Report]) -> bytes:
        """Return the bytes of DCP's metadata."""
        assert self._plan is not None
        return pickled(self._plan.metadata, reports)

    def _published(self, late: list[_Late] | RankError) -> Manifest:
        """Write DCP's metadata and the manifest, and publish the step."""
        if isinstance(late, RankError):
            raise late
        assert self._plan is not None
        assert self._new is not None
        reports: list[Report] = [one.report or told for one, told in zip(late, self._reports, strict=True)]
        data, error = self._metadata
        if error is not None:
            raise error
        if data is None:
            data = self._pickled(reports)
        step, nbytes = self._task.step, tensor_bytes(self._plan.metadata)
        made = publish(self._new, step, self._order, nbytes, self._task.metadata, data, reports)
        slowest = max(range(self._world), key=lambda rank: late[rank].seconds)
        _log.info("step %d: rank %d wrote for the longest time, %.2f s", step, slowest, late[slowest].seconds)
        self._new = None
        self._writer.hide()
        return made


def pickled(metadata: Metadata, reports: Sequence[Report]) -> bytes:
    """Return the bytes of DCP's metadata of a step of which each rank has what it reports."""
    with gc_paused():
        metadata.storage_data = {one.index: one.storage_data for report in reports for one in report.results}
        return metadata_file.pickled(metadata)


def publish(
    new: UnpublishedStep,
    step: int,
    order: int,
    nbytes: int,
    user_metadata: dict[str, Any],
    data: bytes,
    reports: Sequence[Report],
) -> Manifest:
    """Write DCP's metadata, which are ``data``, and the manifest, and publish the step; return the manifest."""
    with AtomicFile(os.path.join(new.path, DCP_METADATA)) as file:
        file.fill(data)
        file.commit(durable=True)
    files = (File(DCP_METADATA, len(data), crc32(data)), *(file for report in reports for file in report.files))
    saved = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    made = Manifest(step, order, saved, nbytes, files, {}, user_metadata, manifest.DCP, len(reports))
    with AtomicFile(os.path.join(new.path, manifest.NAME)) as file:
        manifest.write(file, made)
    remove_all(new.path, leftovers(new.path, {file.name for file in files}) - {FIRST_MARK})
    new.publish()
    return made
