"""Starts the writer process of a rank, sends it parts of steps, and tells the other ranks what became of them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from fastio.checkpoint.folder.manifest import Manifest
from fastio.checkpoint.folder.step_folders import StepFolder
from fastio.checkpoint.folder.unpublished_step import UnpublishedStep, remove_parts
from fastio.checkpoint.ranks.gloo import Gloo
from fastio.checkpoint.ranks.messages import Messages, tried
from fastio.checkpoint.ranks.step_reports import StepGoneError, StepReports
from fastio.checkpoint.saving.rank_assignments import Assignment
from fastio.checkpoint.saving.rank_links import views_of
from fastio.checkpoint.saving.rank_state import RankState
from fastio.checkpoint.saving.shared_staging import SharedStaging
from fastio.checkpoint.saving.step_kinds import RankTask
from fastio.checkpoint.saving.writing import WrittenStep
from fastio.checkpoint.writer_process.messages import StagedPart, WriterSettings, places_in
from fastio.checkpoint.writer_process.process import WriterProcess
from fastio.checkpoint.writer_process.rank_steps import PartOfStep
from fastio.errors import CheckpointError, RankError, TransferError


class RankWriterProcess(WriterProcess):
    """The process of one rank. The ranks call :meth:`write` in the same order, and have the same results and errors."""

    def __init__(
        self, steps: StepFolder, settings: WriterSettings, inherited: Sequence[int], connections: Gloo
    ) -> None:
        self._messages, self._rank, self._world = Messages(connections), connections.rank, connections.world
        super().__init__(steps, settings, inherited)

    def write(self, task: RankTask) -> WrittenStep:
        """Wait until the step is published. RankError on all ranks if one failed; RankLostError if one ended."""
        part, error = tried(lambda: self._outcome(task))
        task.staged_is_free()
        if error is not None and self.is_lost:
            self._report(task.step, task.assignment, error)
        parts = self._messages.gathered(part, error)
        made, error = tried(lambda: _manifest(parts)) if parts is not None else (None, None)
        if error is not None:  # all processes have ended their parts, of which one may have come after the removal
            remove_parts(self._steps, task.step, task.assignment.token)
        made = self._messages.scattered(None if made is None else [made] * self._world, error)
        assert part is not None
        return WrittenStep(made, part.result, part.linked)

    def _report(self, step: int, assignment: Assignment, error: Exception) -> None:
        """Report to the first rank's process, if that cannot see it by itself, that this one's has ended."""
        if assignment.writers[self._rank].is_beside(assignment.writers[0]):
            return
        with contextlib.suppress(TransferError):
            path = UnpublishedStep(self._steps, step, assignment.token).path
            StepReports(path).leave_failure(self._rank, error)

    def _message(self, task: RankTask, memory: SharedStaging) -> StagedPart:
        state: RankState = task.content
        assignment: Assignment = task.assignment
        base, unchanged = (None, set()) if task.base is None else (task.base.manifest, task.base.unchanged())
        names = {index.fqn for index in assignment.indices}
        objects = {name: data for name, data in state.objects.items() if name in names}
        return StagedPart(
            self._rank, task.step, assignment, views_of(state), places_in(memory.address, state.storages), objects,
            task.metadata, base, unchanged, dict(task.crcs), dict(task.block_crcs),
        )  # fmt: skip

    def _clear(self) -> None:
        """Remove what the process left of a step: the first rank does, whose process made the folder."""
        if self._rank == 0:
            super()._clear()
        else:
            self._process.wait()


def _manifest(parts: list[PartOfStep] | RankError) -> Manifest:
    """The manifest of a step whose parts are those; RankError with the errors that made others, if any failed."""
    if not isinstance(parts, RankError):
        made = parts[0].manifest
        assert made is not None
        return made
    errors = dict(parts.errors)
    first = errors.pop(0, None)
    named = first.errors if isinstance(first, RankError) else {} if first is None else {0: first}
    own = {rank: error for rank, error in errors.items() if not isinstance(error, StepGoneError)}
    raise RankError({**named, **own} or {rank: CheckpointError(str(error)) for rank, error in errors.items()})
