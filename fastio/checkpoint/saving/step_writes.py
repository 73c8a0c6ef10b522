"""Writes copied steps: on a background thread, by a process of its own, or at once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from fastio._native import Latch
from fastio.checkpoint.background_write import BackgroundWrite
from fastio.checkpoint.folder.long_path import descriptors_of
from fastio.checkpoint.folder.manifest import Manifest
from fastio.checkpoint.folder.step_folders import StepFolder
from fastio.checkpoint.ranks.members import Agreement
from fastio.checkpoint.save_handle import Meter, SaveHandle
from fastio.checkpoint.saving.save_settings import SaveSettings
from fastio.checkpoint.saving.snapshot import Snapshot
from fastio.checkpoint.saving.snapshot_pool import SnapshotPool
from fastio.checkpoint.saving.step_kinds import StepKind
from fastio.checkpoint.saving.step_writer import StepWriter
from fastio.checkpoint.stop_signals import StopSignals
from fastio.checkpoint.training_pause import TrainingPause
from fastio.checkpoint.write_queue import WriteQueue
from fastio.checkpoint.writer_process.messages import WriterSettings
from fastio.checkpoint.writer_process.process import WriterProcess
from fastio.engine.background_job import Progress
from fastio.engine.delayed_progress import after_a_second
from fastio.errors import CheckpointError
from fastio.progress import shown
from fastio.results import SaveResult, publish
from fastio.runtime.interrupt_safe_thread import POLL_SECONDS, NoThreadError
from fastio.sizes import format_size

_log = logging.getLogger("fastio.checkpoint")


class Save(NamedTuple):
    """A save under way: what to write, its handle, how far it is, and for how long training pauses.

    It is written once all members reach the ``agreement``.
    """

    task: Any
    handle: SaveHandle
    meter: Meter
    pause: TrainingPause
    agreement: Agreement


class StepWrites:
    """Writes steps one after the other, and tells what became of each. ``base`` is the step that was written last."""

    def __init__(self, steps: StepFolder, settings: SaveSettings, kind: StepKind, snapshots: SnapshotPool) -> None:
        self._steps, self._settings, self._lock, self._snapshots = steps, settings, kind.lock, snapshots
        self._kind, self._writer = kind, kind.writer(settings)
        self.queue = WriteQueue()
        self.stop = StopSignals()
        self.base: Manifest | None = None
        self._process: WriterProcess | None = None
        if settings.writer == "process":
            with kind.members.agreement("Checkpointer"):
                self._process = self._started()

    def start(self, save: Save, snapshot: Snapshot, on_end: Callable[[BackgroundWrite], None]) -> BackgroundWrite:
        """Start to write a step in the background, after the write before removed the steps that it replaced.

        Unless its copy is still being made, a writer process has it when this returns.
        """
        save.agreement.reach()
        before = self.queue.last
        ordered = self._ordered(save.task, before)
        by_process = ordered is not None
        if by_process:
            save = save._replace(task=ordered)
        staging = Latch()

        def work() -> SaveResult | None:
            staging.wait()
            try:
                if staging.is_broken:
                    self._abandon(by_process)
                    if before is not None:
                        before.join()  # as every write does: it may still remove the steps that it replaced
                    return None
                if before is not None:
                    self._wait_for(before, save.task.step, self._process if by_process else None)
                    if self._settings.when_busy != "queue" and not by_process:
                        before.raise_error()  # else the next call raises it, and this step is written
                return self._write(save._replace(task=save.task.freeing(free)), writer)
            except Exception:
                if not save.pause.is_broken:  # if it is, save itself raises the error that broke it
                    raise
                return None

        writer: StepWriter | WriterProcess = self._writer
        handle = save.handle

        def free() -> None:
            write.free()
            save.pause.open()

        def cleanup() -> None:
            writer.remove_hidden()

        write = BackgroundWrite(work, cleanup, on_end, handle.written, handle.nbytes)
        self._snapshots.use(snapshot, write)
        with staging:  # the thread waits until it knows whether its step was sent
            self._begin(write, save.task.step)
            if by_process:
                writer = self._staged(save.task, snapshot, before)
            staging.open()
        return write

    def _begin(self, write: BackgroundWrite, step: int) -> None:
        try:
            self.queue.start(write)
        except NoThreadError as error:
            raise CheckpointError(
                f"{self._steps.path}: there is no thread to write step {step} in the background ({error}): "
                "raise the limit (ulimit -u, or the container's pids.max), or use asynchronous=False"
            ) from error

    def write_now(self, save: Save) -> None:
        """Write a step before this returns."""
        save.agreement.reach()
        result = self._write(save, self._writer)
        self._writer.remove_hidden()
        save.handle.written.set_result(result)

    def prune(self) -> list[int]:
        """Remove the steps that are not to be kept, after any write has ended; return their numbers."""
        self.queue.join()
        if self._lock is not None:
            self._lock.require()
        return self._writer.prune()

    def close(self) -> None:
        """End the writer process. All writes must have ended."""
        if self._process is not None:
            self._process.close()

    def _wait_for(self, before: BackgroundWrite, step: int, process: WriterProcess | None) -> None:
        """Wait until the write before has ended, at most until there is no time for this step after a signal."""
        while not before.join(POLL_SECONDS):
            try:
                self.stop.require_time(step)
            except CheckpointError:
                if process is not None:
                    process.kill()  # it has this step
                raise

    def _abandon(self, by_process: bool) -> None:
        """End the process after an interrupt while a step was sent: it may have it, and the copy is used again."""
        if by_process and self._process is not None:
            self._process.kill()

    def _ordered(self, task: Any, before: BackgroundWrite | None) -> Any:
        """Return a task for the writer process; None if there is none, or this step is written by a thread."""
        if self._process is None:
            return None
        process = self._restarted(before) if self._process.is_lost else self._process
        return self._writer.ordered(task, process.pid)

    def _staged(self, task: Any, snapshot: Snapshot, before: BackgroundWrite | None) -> WriterProcess:
        """Send a copied step to the writer process, or to another one if that is lost; return it."""
        process = self._process
        assert process is not None
        try:
            process.stage(task, snapshot.shared_memory)
        except ConnectionError:  # it ended just now
            process = self._restarted(before)
            process.stage(task, snapshot.shared_memory)
        return process

    def _restarted(self, before: BackgroundWrite | None) -> WriterProcess:
        """Start another process in the place of one that ended."""
        _log.warning("%s: the writer process has ended; another one is started", self._steps.path)
        if before is not None:
            before.join()  # it removes what the process left
        self._process = process = self._started()
        return process

    def _started(self) -> WriterProcess:
        own, path = self._settings, self._steps.path
        settings = WriterSettings(path, own.keep, own.keep_every, own.policy, own.read_back)
        lock = self._lock
        inherited = [] if lock is None else [lock.fileno()]
        process = self._kind.process(settings, [*inherited, *descriptors_of(path)])
        if lock is not None:
            lock.name_writer(process.pid)
        return process

    def _write(self, save: Save, writer: StepWriter | WriterProcess) -> SaveResult:
        """Write a step, and hide the steps that are not to be kept any more."""
        task, pause = save.task, save.pause
        try:
            if writer is self._writer:  # the process has the step already
                self.stop.require_time(task.step)
            with shown(self._settings.progress, f"saving step {task.step}") as on_progress:
                told = after_a_second(on_progress)
                written = writer.write(task._replace(progress=self._progress_of(save, told)))
        except Exception as error:
            _log.error("step %d could not be saved: %s", task.step, error)
            raise
        pause.open()
        if self._settings.incremental and task.chunk_memory is None:
            self.base = written.manifest
        result = written.result
        publish(result)
        _log.info(
            "step %d saved: %s in %.2f s, %.0f MB/s by %s (%s), training paused for %.3f s%s",
            task.step,
            format_size(result.nbytes),
            result.seconds,
            result.bandwidth / 1e6,
            result.tool,
            result.route,
            pause.seconds,
            f", {format_size(written.linked)} are linked to the step before" if written.linked else "",
        )
        writer.hide()
        return result

    def _progress_of(self, save: Save, told: Progress | None) -> Progress:
        """Return a function that notes and reports progress, and ends the write when there is no time left for it."""

        def on_progress(done: int, total: int) -> None:
            save.meter.advance(done, total)
            self.stop.require_time(save.task.step)
            if told is not None:
                told(done, total)

        return on_progress
