"""The writer process: writes the steps that it is sent, in order, and ends when the training process has.

It has a session of its own, and all signals blocked that ask a program to end: it ends by itself, soon.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import sys
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import TYPE_CHECKING, Any

from fastio.checkpoint.folder.incremental_links import BaseStep
from fastio.checkpoint.folder.step_folders import StepFolder
from fastio.checkpoint.saving.shared_staging import SharedMappings
from fastio.checkpoint.saving.snapshot import storage_at
from fastio.checkpoint.saving.step_writer import StepWriter
from fastio.checkpoint.saving.writing import Task
from fastio.checkpoint.writer_process.messages import (
    FAILED,
    FREED,
    PROGRESS,
    REMOVED,
    WRITTEN,
    StagedPart,
    WriterSettings,
    read_step,
)
from fastio.errors import CheckpointError
from fastio.formats.pt.records import Records

if TYPE_CHECKING:
    from fastio.checkpoint.writer_process.rank_steps import RankSteps

_NICE = 10  # training goes first


def main() -> None:
    """Run the process. Its argument is the descriptor of the socket; it holds the folder's lock, too."""
    os.nice(_NICE)
    with contextlib.suppress(EOFError, OSError):
        _Writer(Connection(int(sys.argv[1]))).run()
    atexit._run_exitfuncs()  # dictionaries are stored
    os._exit(0)  # taking torch apart would take half a second, for which close() waits


class _Writer:
    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._settings: WriterSettings = connection.recv()
        settings = self._settings
        self._steps = StepFolder(settings.folder)
        self._writer = StepWriter(self._steps, settings.keep, settings.keep_every)
        self._memory = SharedMappings()  # the steps' copies lie in the same memory
        self._rank_steps: RankSteps | None = None

    def run(self) -> None:
        """Write what comes. EOFError at the end of the training process, when all is written."""
        while True:
            nbytes = self._connection.recv()
            copied, staged = recv_handle(self._connection), recv_handle(self._connection)
            self._write(nbytes, copied, staged)

    def _write(self, nbytes: int, copied: int, staged: int) -> None:
        try:
            self._tell(WRITTEN, self._written(nbytes, copied, staged))
        except Exception as error:
            self._tell(FAILED, error)
            return
        failure = None
        try:
            self._writer.remove_hidden()
        except Exception as error:
            failure = error
        self._tell(REMOVED, failure)

    def _written(self, nbytes: int, copied: int, staged: int) -> Any:
        settings = self._settings
        try:
            step = read_step(staged)
            base = self._memory.address(copied, nbytes)
        finally:
            os.close(staged)
            os.close(copied)
        storages = [storage_at(base + start, name, size) for name, start, size in step.storages]
        if isinstance(step, StagedPart):
            return self._ranks(step.rank).write(step, storages, self._tell_progress, self._tell_freed)
        task = Task(
            self._steps,
            step.step,
            step.order,
            Records(step.small, storages),
            step.image,
            step.metadata,
            base=None if step.base is None else BaseStep(step.base, lambda: step.unchanged),
            chunk_memory=None,
            is_snapshot=True,
            crcs=step.crcs,
            policy=settings.policy,
            read_back=settings.read_back,
            progress=self._tell_progress,
        )
        written = self._writer.write(task)
        self._writer.hide()
        return written

    def _ranks(self, rank: int) -> RankSteps:
        if self._rank_steps is None:
            from fastio.checkpoint.writer_process.rank_steps import RankSteps

            self._rank_steps = RankSteps(self._steps, self._settings, self._writer.hide, rank)
        return self._rank_steps

    def _tell_progress(self, done: int, total: int) -> None:
        self._tell(PROGRESS, (done, total))

    def _tell_freed(self) -> None:
        self._tell(FREED, None)

    def _tell(self, kind: str, value: Any) -> None:
        """Send a message. Nobody reads it if the training process is gone."""
        try:
            message = pickle.dumps((kind, value))
            pickle.loads(message)
        except Exception:  # an error that cannot be sent
            message = pickle.dumps((kind, CheckpointError(f"{type(value).__name__}: {value}")))
        with contextlib.suppress(OSError):
            self._connection.send_bytes(message)
