"""The two kinds of steps that are saved: by one process, as files of torch.save; and by ranks, as a checkpoint of DCP.

A kind says how a state is captured and written, and who holds the folder's lock and removes old steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from fastio.checkpoint.folder.incremental_links import BaseStep
from fastio.checkpoint.folder.lock import FolderLock
from fastio.checkpoint.folder.step_folders import StepFolder
from fastio.checkpoint.ranks.members import Alone, Ranks
from fastio.checkpoint.saving.captured_state import captured
from fastio.checkpoint.saving.chunked_save import ChunkMemory
from fastio.checkpoint.saving.refused_objects import RefusedObjects
from fastio.checkpoint.saving.save_settings import SaveSettings
from fastio.checkpoint.saving.snapshot import Storage
from fastio.checkpoint.saving.step_writer import StepWriter
from fastio.checkpoint.saving.writing import Task, WrittenStep
from fastio.checkpoint.writer_process.messages import WriterSettings
from fastio.checkpoint.writer_process.process import WriterProcess
from fastio.engine.background_job import Progress


class StepKind(Protocol):
    """How steps are saved by the ``members``."""

    members: Alone
    lock: FolderLock | None

    def writer(self, settings: SaveSettings) -> StepWriter:
        """Return what writes steps one after the other."""

    def process(self, settings: WriterSettings, inherited: Sequence[int]) -> WriterProcess:
        """Start a process that writes steps; it inherits descriptors."""

    def task(self, step: int, state: Any, metadata: dict[str, Any], settings: SaveSettings) -> Any:
        """Capture a state, and return what to write: a :class:`Task`, or a :class:`RankTask`."""


class StepsOfOneProcess:
    """Steps by one process, which holds the folder's lock."""

    def __init__(self, steps: StepFolder) -> None:
        self.members = Alone()
        self.lock: FolderLock | None = FolderLock(steps.lock_folder, steps.path)
        self._steps, self._refused_objects = steps, RefusedObjects()

    def writer(self, settings: SaveSettings) -> StepWriter:
        return StepWriter(self._steps, settings.keep, settings.keep_every)

    def process(self, settings: WriterSettings, inherited: Sequence[int]) -> WriterProcess:
        return WriterProcess(self._steps, settings, inherited)

    def task(self, step: int, state: Any, metadata: dict[str, Any], settings: SaveSettings) -> Task:
        records, image = captured(state, f"{self._steps.path}: step {step}", self._refused_objects)
        return Task(
            self._steps, step, 0, records, image, metadata, base=None, chunk_memory=None, is_snapshot=False,
            crcs={}, policy=settings.policy, read_back=settings.read_back, progress=None,
        )  # fmt: skip


class StepsOfRanks:
    """Steps by ranks, of which the first holds the folder's lock, publishes steps, and removes old ones."""

    def __init__(self, steps: StepFolder, members: Ranks) -> None:
        from fastio.checkpoint.saving.rank_capture import RankCapture

        self.members: Alone = members
        self._ranks, self._connections = members, members.writes
        self._steps = steps
        self._capture = RankCapture(members.rank)
        self.lock: FolderLock | None = None
        try:
            with members.agreement("Checkpointer"):
                if members.rank == 0:
                    self.lock = FolderLock(steps.lock_folder, steps.path)
        except BaseException:
            if self.lock is not None:
                self.lock.release()
            raise

    def writer(self, settings: SaveSettings) -> StepWriter:
        return _RankStepWriter(self._steps, settings.keep, settings.keep_every, self._ranks, self._connections)

    def process(self, settings: WriterSettings, inherited: Sequence[int]) -> WriterProcess:
        from fastio.checkpoint.writer_process.rank_process import RankWriterProcess

        return RankWriterProcess(self._steps, settings, inherited, self._connections)

    def task(self, step: int, state: Any, metadata: dict[str, Any], settings: SaveSettings) -> RankTask:
        content = self._capture.capture(state, f"{self._steps.path}: step {step}")
        return RankTask(
            self._steps, step, content, metadata, base=None, chunk_memory=None, is_snapshot=False,
            crcs={}, block_crcs={}, policy=settings.policy, read_back=settings.read_back, progress=None,
            staged_is_free=lambda: None,
        )  # fmt: skip


class RankTask(NamedTuple):
    """What a rank writes, and where; ``staged_is_free`` is called when it does not need its ``content`` any more.

    ``assignment`` says what a writer process does with it.
    ``block_crcs``: CRC-32s of the blocks of storages that were computed while they were copied, by name. The other
    fields are those of a :class:`Task`.
    """

    folder: StepFolder
    step: int
    content: Any
    metadata: dict[str, Any]
    base: BaseStep | None
    chunk_memory: ChunkMemory | None
    is_snapshot: bool
    crcs: Mapping[str, int]
    block_crcs: Mapping[str, bytes]
    policy: Any
    read_back: bool
    progress: Progress | None
    staged_is_free: Callable[[], object]
    assignment: Any = None

    @property
    def storages(self) -> Sequence[Storage]:
        """The storages of the state."""
        storages: Sequence[Storage] = self.content.storages
        return storages

    @property
    def nbytes(self) -> int:
        """The bytes of this rank's part of the state."""
        return sum(nbytes for _, _, nbytes in self.storages)

    def of_copies(self, copies: Sequence[Storage]) -> RankTask:
        """Return it with copies of the storages."""
        return self._replace(content=self.content.over(copies), is_snapshot=True)

    def with_crcs(self, crcs: Mapping[str, int], block_crcs: Mapping[str, bytes]) -> RankTask:
        """Return it with CRC-32s of the copies."""
        return self._replace(crcs=crcs, block_crcs=block_crcs)

    def freeing(self, free: Callable[[], object]) -> RankTask:
        """Return it with a function to call when the memory of the storages is read no more."""
        return self._replace(staged_is_free=free)


class _RankStepWriter(StepWriter):
    """Writes steps together with the other ranks."""

    def __init__(
        self, steps: StepFolder, keep: int | None, keep_every: int | None, members: Ranks, connections: Any
    ) -> None:
        super().__init__(steps, keep, keep_every)
        from fastio.checkpoint.saving.rank_assignments import Assignments
        from fastio.checkpoint.saving.rank_step import RankStepWriter

        self._members = members
        self._assignments = Assignments(members.calls, super().next_order)
        self._ranks = RankStepWriter(connections, super().next_order, super().hide)

    def ordered(self, task: Any, pid: int) -> Any:
        """Return a task with what the process writes of it; None if a thread does, which is so on all ranks then."""
        assignment = self._assignments.assigned(task, pid)
        return None if assignment is None else task._replace(assignment=assignment)

    def write(self, task: Any) -> WrittenStep:
        """Write a step; the first rank also makes those invisible that are not to be kept."""
        return self._ranks.write(task)

    def hide(self) -> list[int]:
        """The first rank did it when it wrote the step."""
        return []

    def prune(self) -> list[int]:
        hide = super().hide

        def pruned() -> list[int]:
            gone = hide()
            self.remove_hidden()
            return gone

        return self._members.first(pruned, "prune()")


def kind_of_steps(steps: StepFolder, members: Alone) -> StepKind:
    """Return how the members save steps; raises as the lock does."""
    if isinstance(members, Ranks):
        return StepsOfRanks(steps, members)
    return StepsOfOneProcess(steps)
