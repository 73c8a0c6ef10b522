"""Saves steps: takes the snapshot, writes it in the background, and removes earlier steps."""

from __future__ import annotations

import logging
import signal
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from fastio.checkpoint import at_exit
from fastio.checkpoint.background_write import BackgroundWrite
from fastio.checkpoint.folder.incremental_links import BaseStep
from fastio.checkpoint.folder.manifest import Manifest
from fastio.checkpoint.folder.step_folders import StepFolder
from fastio.checkpoint.ranks.members import Agreement, Alone
from fastio.checkpoint.save_handle import Meter, SaveHandle
from fastio.checkpoint.saving.chunked_save import ChunkMemory
from fastio.checkpoint.saving.save_settings import SaveSettings
from fastio.checkpoint.saving.snapshot import Storage
from fastio.checkpoint.saving.snapshot_pool import SnapshotPool
from fastio.checkpoint.saving.step_kinds import kind_of_steps
from fastio.checkpoint.saving.step_writes import Save, StepWrites
from fastio.checkpoint.stop_signals import StopSignals
from fastio.checkpoint.training_pause import TrainingPause
from fastio.errors import CheckpointError
from fastio.runtime.interrupt_safe_thread import POLL_SECONDS
from fastio.sizes import exact_size

_log = logging.getLogger("fastio.checkpoint")
# If at least this many bytes are known to have changed, they are written while the rest is still being compared.
_WORTH_AN_EARLY_START = 32 << 20
_MOST_COPIES = 2  # with a queue, without a memory budget: of the step that is written, and of one that waits


class _Situation(NamedTuple):
    """What decides on a rank whether a step is skipped."""

    signal: signal.Signals | None
    is_busy: bool
    has_failed: bool


class Saver:
    """Saves steps into a folder, one at a time. It holds the folder's lock until it is closed and all work is done."""

    def __init__(self, steps: StepFolder, settings: SaveSettings, members: Alone) -> None:
        self._kind = kind_of_steps(steps, members)
        self._lock, self._members = self._kind.lock, members
        self._snapshots = SnapshotPool(settings.incremental, shared=settings.writer == "process")
        try:
            self._writes = StepWrites(steps, settings, self._kind, self._snapshots)
        except BaseException:
            if self._lock is not None:
                self._lock.release()
            raise
        self._steps = steps
        self._settings = settings
        self._queue = self._writes.queue
        if steps.is_remote:
            at_exit.finish_at_exit(self._queue)
        self._is_closing = self._all_stop = False
        self._last: SaveHandle | None = None  # the save after a signal
        self._has_told_full = False

    @property
    def stop(self) -> StopSignals:
        """The signals that ask the program to end."""
        return self._writes.stop

    @property
    def should_stop(self) -> bool:
        """Whether a signal came that asks the program to end: to any rank, if all listen."""
        if self.stop.is_listening and not self._all_stop:
            self._agree_to_stop(self._members.exchange(self.stop.received, "should_stop"))
        return self._all_stop

    def _agree_to_stop(self, signals: Sequence[signal.Signals | None]) -> None:
        """Note the signals that all ranks know of now; one that comes to a rank later is for the next time."""
        for received in signals:
            self.stop.adopt(received)
        self._all_stop = self._all_stop or any(received is not None for received in signals)

    @property
    def is_busy(self) -> bool:
        """Whether a step is still being written."""
        return bool(self._queue.working())

    @property
    def _may_start_early(self) -> bool:
        """Whether a step may be written before all of it is copied: its writer must live as long as this process.

        A rank has one file of its own in a step, which is written when it is known what changed.
        """
        settings = self._settings
        return settings.asynchronous and settings.writer == "thread" and self._members.world == 1

    def require_no_callback(self) -> None:
        """Raise CheckpointError on a thread that writes, where a callback would wait for its own end."""
        if self._queue.is_on_its_thread:
            raise CheckpointError(
                f"{self._steps.path}: a callback of a save, which runs on the thread that writes, used the "
                "Checkpointer; use it on the training's thread, after handle.written.result()"
            )

    def described(self) -> list[str]:
        """Its main settings, in words."""
        settings = self._settings
        return [
            "keeps all steps" if settings.keep is None else f"steps kept: {settings.keep}",
            *([] if settings.keep_every is None else [f"multiples of {settings.keep_every} stay"]),
            "asynchronous" if settings.asynchronous else "synchronous",
            *(["incremental"] if settings.incremental else []),
            *(["written by a process"] if settings.writer == "process" else []),
        ]

    def save(self, step: int, state: Any, metadata: dict[str, Any]) -> SaveHandle:
        """Save a step, or skip it; raises the error of a step before, if it had one."""
        why = self._reason_to_skip(f"save({step})")
        if why:
            _log.info("step %d: not saved, %s", step, why)
            return SaveHandle.of_skipped(step, self._steps.path_of(step), why)
        with self._members.agreement(f"save({step})") as agreement:
            if self._settings.when_busy == "queue":
                self._queue.raise_ended()
            else:
                self._queue.wait()
            if self._lock is not None:
                self._lock.require()
            self.stop.require_time(step)
            handle = self._save(step, state, metadata, agreement)
        handle.staged.set_result(None)
        if self._all_stop:
            self._last = handle
        return handle

    def _reason_to_skip(self, what: str) -> str:
        """Why the next step is not saved: of the first rank, so that all do the same; ``what`` is called."""
        stop, last = self.stop, self._last
        mine = _Situation(stop.received, self.is_busy, last is None or last.written.is_failed)
        now = self._members.exchange(mine, what)
        self._agree_to_stop([other.signal for other in now])
        if self._all_stop and stop.received is not None:
            if last is None or now[0].has_failed:
                return ""
            return f"step {last.step} is the last one, it was saved after {stop.received.name}"
        skips = self._settings.when_busy == "skip" and now[0].is_busy
        return "the one before is still being written (when_busy='skip')" if skips else ""

    def _save(self, step: int, state: Any, metadata: dict[str, Any], agreement: Agreement) -> SaveHandle:
        settings = self._settings
        pause = TrainingPause()
        task = self._kind.task(step, state, metadata, settings)
        base, self._writes.base = self._writes.base, None
        total = sum(nbytes for _, _, nbytes in task.storages)
        meter = Meter(total)
        handle = SaveHandle(step, self._steps.path_of(step), task.nbytes, meter)
        save = Save(task, handle, meter, pause, agreement)
        if settings.asynchronous:
            self._make_room(total)
        if settings.asynchronous and settings.memory_budget is not None and total > settings.memory_budget:
            self._tell_full(total, settings.memory_budget)
            snapshot = self._snapshots.free()
            save = save._replace(task=task._replace(chunk_memory=ChunkMemory(snapshot, settings.memory_budget, pause)))
            with pause:
                write = self._writes.start(save, snapshot, self._release_after)
                while not pause.wait(POLL_SECONDS):
                    if not write.is_working:  # it ended without opening the pause
                        write.raise_error()
        elif settings.asynchronous or settings.incremental:
            self._copy(save, task.storages, base)
        else:
            self._writes.write_now(save)
        return handle

    def _make_room(self, nbytes: int) -> None:
        """Wait until one more copy, of ``nbytes``, may be in memory; raise errors of steps that ended meanwhile."""
        budget = self._settings.memory_budget
        while working := [write for write in self._queue.working() if write.reads_memory]:
            used = sum(write.nbytes for write in working)
            if used + nbytes <= budget if budget is not None else len(working) < _MOST_COPIES:
                return
            working[0].wait_freed()
            self._queue.raise_ended()

    def _tell_full(self, nbytes: int, budget: int) -> None:
        """Warn, once, that steps are full although they were to be incremental."""
        if not self._settings.incremental or self._has_told_full:
            return
        self._has_told_full = True
        warnings.warn(
            f"{self._steps.path}: incremental=True has no effect: the state has {exact_size(nbytes)}, and "
            f"memory_budget={exact_size(budget)} keeps no copy to compare the next step with; raise the budget, "
            "or leave one of them out",
            RuntimeWarning,
            stacklevel=5,
        )

    def _copy(self, save: Save, storages: Sequence[Storage], base: Manifest | None) -> None:
        """Take a snapshot and save it; storages that soon prove changed are written while others are compared."""
        snapshot, pause = self._snapshots.free(), save.pause
        copies = snapshot.allocate(storages)
        task = save.task.of_copies(copies)
        sizes = {name: nbytes for name, _, nbytes in storages}
        same: set[str] = set()
        has_begun = False

        def unchanged() -> set[str]:
            pause.wait()
            pause.require()
            return same

        def begin(changed: set[str]) -> None:
            nonlocal has_begun
            nbytes = sum(sizes[name] for name in changed)
            if self._may_start_early and base is not None and nbytes >= _WORTH_AN_EARLY_START:
                has_begun = True
                early = task._replace(base=BaseStep(base, unchanged, frozenset(changed)), crcs=snapshot.crcs)
                self._writes.start(save._replace(task=early), snapshot, self._release_after)

        with pause:
            same |= snapshot.take(storages, begin)
            if self._settings.asynchronous:
                pause.open()  # inside the context, so that an interrupt cannot leave the writer waiting
        if has_begun:
            return
        if base is not None and same:
            task = task._replace(base=BaseStep(base, lambda: same))
        save = save._replace(task=task.with_crcs(snapshot.crcs, snapshot.block_crcs))
        if self._settings.asynchronous:
            self._writes.start(save, snapshot, self._release_after)
        else:
            self._writes.write_now(save)

    def wait(self) -> None:
        """Return when all saved steps are visible; raise the error of one, once, if its save failed."""
        self._queue.wait()

    def prune(self) -> list[int]:
        """Remove the steps that are not to be kept, after any write has ended; return their numbers."""
        return self._writes.prune()

    def close(self) -> None:
        """Wait for the writes, free the memory, release the lock, and raise the first error that was not raised.

        If this is interrupted, the write continues, and releases memory and lock at its end. Nothing may be saved after
        a call.
        """
        self._is_closing = True
        try:
            self._queue.join()
        finally:
            self.stop.restore()
            if not self._queue.is_running:
                self._release()

    def _release_after(self, write: BackgroundWrite) -> None:
        if self._is_closing and write is self._queue.last:
            self._release()

    def _release(self) -> None:
        self._writes.close()
        self._snapshots.close()
        if self._lock is not None:
            self._lock.release()
        self._members.close()
