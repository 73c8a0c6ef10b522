"""In the writer process of a rank: writes its parts of steps; that of the first rank publishes the steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fastio.checkpoint.folder.incremental_links import BaseStep
from fastio.checkpoint.folder.manifest import Manifest
from fastio.checkpoint.folder.step_folders import StepFolder
from fastio.checkpoint.folder.unpublished_step import UnpublishedStep
from fastio.checkpoint.ranks.step_reports import StepGoneError, StepReports
from fastio.checkpoint.saving.rank_assignments import Assignment
from fastio.checkpoint.saving.rank_file import RankFile, Report
from fastio.checkpoint.saving.rank_images import lay_out
from fastio.checkpoint.saving.rank_links import WrittenPart, linked_items, views_of
from fastio.checkpoint.saving.rank_plans import tensor_bytes
from fastio.checkpoint.saving.rank_state import RankState
from fastio.checkpoint.saving.rank_step import pickled, publish
from fastio.checkpoint.saving.snapshot import Storage
from fastio.checkpoint.saving.step_kinds import RankTask
from fastio.checkpoint.writer_process.messages import StagedPart, WriterSettings
from fastio.engine.background_job import Progress
from fastio.results import SaveResult
from fastio.runtime.gc_pause import gc_paused


class PartOfStep(NamedTuple):
    """A part that was written: by the first rank's process once the step is published, with its manifest."""

    manifest: Manifest | None
    result: SaveResult
    linked: int


class _Part(NamedTuple):
    """What a rank has in a step, how its own file was written, and the bytes that it shares with the step before."""

    report: Report
    result: SaveResult
    linked: int


class RankSteps:
    """Writes the parts of one rank, one after the other. ``hide`` is called when the first rank published a step."""

    def __init__(self, steps: StepFolder, settings: WriterSettings, hide: Callable[[], object], rank: int) -> None:
        self._steps, self._settings, self._hide, self._rank = steps, settings, hide, rank
        self._last: WrittenPart | None = None  # what the rank has in the step that was written last
        self._file: RankFile | None = None

    def write(
        self, staged: StagedPart, storages: Sequence[Storage], progress: Progress, free: Callable[[], object]
    ) -> PartOfStep:
        """Write a part; ``free`` is called when its copy is needed no more.

        RankError if other ranks failed; StepGoneError if the first one did: nothing of the step is left.
        """
        settings = self._settings
        base = None if staged.base is None else BaseStep(staged.base, lambda: staged.unchanged)
        task = RankTask(
            self._steps, staged.step, RankState(staged.views, storages, staged.objects, {}, b""), staged.metadata, base,
            chunk_memory=None, is_snapshot=True, crcs=staged.crcs, block_crcs=staged.block_crcs, policy=settings.policy,
            read_back=settings.read_back, progress=progress, staged_is_free=free,
        )  # fmt: skip
        try:
            return (self._write_first if self._rank == 0 else self._write_other)(task, staged.assignment)
        finally:
            if self._file is not None:
                self._file.close()
            self._file = None

    def _write_first(self, task: RankTask, assignment: Assignment) -> PartOfStep:
        new = UnpublishedStep(self._steps, task.step, assignment.token)
        try:
            part = self._written(task, assignment, new.path)
            task.staged_is_free()
            reports = StepReports(new.path).collected(assignment.writers, assignment.seconds)
            metadata, all_parts = assignment.checkpoint, [part.report, *reports]
            assert metadata is not None
            data, nbytes = pickled(metadata, all_parts), tensor_bytes(metadata)
            made = publish(new, task.step, assignment.order, nbytes, task.metadata, data, all_parts)
        except BaseException:
            self._discard()
            new.discard()
            raise
        self._note(task, assignment, part)
        self._hide()
        return PartOfStep(made, part.result, part.linked)

    def _write_other(self, task: RankTask, assignment: Assignment) -> PartOfStep:
        path = UnpublishedStep(self._steps, task.step, assignment.token).path
        reports = StepReports(path)
        try:
            part = self._written(task, assignment, path)
            reports.leave(self._rank, part.report)
        except Exception as error:
            self._discard()
            if not os.path.isdir(path):
                raise StepGoneError(f"{path}: it was removed, because another rank failed") from error
            reports.leave_failure(self._rank, error)
            raise
        self._note(task, assignment, part)
        return PartOfStep(None, part.result, part.linked)

    def _written(self, task: RankTask, assignment: Assignment, path: str) -> _Part:
        linked = linked_items(task, path, assignment.indices, self._last)
        elsewhere = {result.index for result in linked.results}
        with gc_paused():
            image = lay_out(task.content, [index for index in assignment.indices if index not in elsewhere])
        self._file = file = RankFile(task, path, self._rank, image, linked)
        written = file.write()
        return _Part(file.checked(written, None), written.result, linked.nbytes)

    def _discard(self) -> None:
        if self._file is not None:
            self._file.discard()

    def _note(self, task: RankTask, assignment: Assignment, part: _Part) -> None:
        """Note what this rank has in the step: only a later step that is told so by the training links to it."""
        report = part.report
        self._last = WrittenPart(assignment.order, views_of(task.content), report.files, report.results)
