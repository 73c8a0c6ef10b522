"""Saving: a snapshot now, its writing behind, and what is kept of the steps before."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from fastio.checkpoint import torch_fallback
from fastio.checkpoint.background_write import BackgroundWrite
from fastio.checkpoint.delayed_progress import after_a_second
from fastio.checkpoint.folder.incremental_links import Base
from fastio.checkpoint.folder.lock import FolderLock
from fastio.checkpoint.folder.manifest import Manifest
from fastio.checkpoint.folder.step_folders import StepFolder
from fastio.checkpoint.restoring.outline import freed_tensors
from fastio.checkpoint.retention import kept
from fastio.checkpoint.saving.chunked_save import Passage
from fastio.checkpoint.saving.picklers import pickle_module_for
from fastio.checkpoint.saving.snapshot import Snapshot, Storage
from fastio.checkpoint.saving.writing import Task, write_step
from fastio.checkpoint.sizes import readable
from fastio.checkpoint.state import captured
from fastio.checkpoint.training_pause import TrainingPause
from fastio.engine.progress import shown
from fastio.errors import CheckpointError
from fastio.formats.pt import torch_probe
from fastio.formats.pt.records import Records, pickled
from fastio.results import publish
from fastio.runtime.gc_pause import gc_paused
from fastio.runtime.interrupt_safe_thread import LOOK_IN_SECONDS, NoThreadError

_log = logging.getLogger("fastio.checkpoint")
_PICKLE_PROTOCOL = 2
# From so many bytes on, what is known to have changed is written while the rest is still looked at.
_WORTH_AN_EARLY_START = 32 << 20


class Manner(NamedTuple):
    """How to save: see :class:`fastio.checkpoint.Checkpointer`. ``memory_budget`` is in bytes."""

    keep: int | None
    keep_every: int | None
    asynchronous: bool
    memory_budget: int | None
    incremental: bool
    read_back: bool
    policy: Any
    progress: Any


def _require_memory(small: Sequence[tuple[str, bytes]], storages: Sequence[Storage]) -> None:
    """CheckpointError for tensors whose memory was freed: what torch.save writes of them cannot be loaded."""
    empty = {name for name, _, nbytes in storages if nbytes == 0}
    if empty and (freed := freed_tensors(dict(small)["data.pkl"], empty)):
        raise CheckpointError(
            f"the memory of {', '.join(freed)} was freed (untyped_storage().resize_(0)): give it back before the save, "
            "or leave it out"
        )


class Saver:
    """Saves steps into a folder, one at a time. The folder's lock is its own: it lives as long as there is work."""

    def __init__(self, steps: StepFolder, manner: Manner) -> None:
        self._lock = FolderLock(steps.path)
        self._steps = steps
        self._manner = manner
        self._snapshot = Snapshot(comparable=manner.incremental)
        self._pending: BackgroundWrite | None = None
        self._base: Manifest | None = None  # the step that the snapshot holds
        self._hidden: list[int] = []  # steps whose files are still there
        self._is_leaving = False
        self._order: int | None = None  # how often was saved here; unknown before the first time

    @property
    def is_busy(self) -> bool:
        """Whether a step is still being written."""
        return self._pending is not None and self._pending.is_working

    def save(self, step: int, state: Any, metadata: dict[str, Any]) -> None:
        """Save a step, when the one before is written; raise its error, if it had one."""
        self.wait()
        self._lock.require()
        manner = self._manner
        still = TrainingPause()
        image = None
        small: Sequence[tuple[str, bytes]] = ()
        storages: Sequence[Storage] = ()
        with gc_paused():
            tree = captured(state)
            module = pickle_module_for(tree)
            if torch_probe.unsupported_reason():
                image = torch_fallback.image_of(tree, module)
            else:
                small, storages = pickled(tree, _PICKLE_PROTOCOL, pickle_module=module)
                _require_memory(small, storages)
        base, self._base = self._base, None
        task = Task(
            self._steps, step, 0, Records(small, storages), image, metadata, base=None, passage=None, is_snapshot=False,
            policy=manner.policy, read_back=manner.read_back, progress=None,
        )  # fmt: skip
        total = sum(nbytes for _, _, nbytes in storages)
        if manner.asynchronous and manner.memory_budget is not None and total > manner.memory_budget:
            task = task._replace(passage=Passage(self._snapshot, manner.memory_budget, still))
            with still:
                pending = self._start(task, still)
                while not still.wait(LOOK_IN_SECONDS):
                    if not pending.is_working:  # nobody is left to say that all is copied
                        pending.complain()
        elif manner.asynchronous or manner.incremental:
            self._copy(task, storages, base, still)
        else:
            self._write_now(task, still)

    def _copy(self, task: Task, storages: Sequence[Storage], base: Manifest | None, still: TrainingPause) -> None:
        """Take a snapshot and save it: what soon turns out to have changed, while the rest is still looked at."""
        held = self._snapshot.lay(storages)
        task = task._replace(records=Records(task.records.small, held), is_snapshot=True)
        sizes = {name: nbytes for name, _, nbytes in storages}
        same: set[str] = set()
        has_begun = False

        def unchanged() -> set[str]:
            still.wait()
            still.require()
            return same

        def begin(changed: set[str]) -> None:
            nonlocal has_begun
            nbytes = sum(sizes[name] for name in changed)
            if self._manner.asynchronous and base is not None and nbytes >= _WORTH_AN_EARLY_START:
                has_begun = True
                self._start(task._replace(base=Base(base, unchanged, frozenset(changed))), still)

        with still:
            same |= self._snapshot.take(storages, begin)
            if self._manner.asynchronous:
                still.open()  # in the context: whoever waits for it waits no longer, whatever interrupts this
        if has_begun:
            return
        task = task._replace(base=Base(base, lambda: same) if base is not None and same else None)
        if self._manner.asynchronous:
            self._start(task, still)
        else:
            self._write_now(task, still)

    def _start(self, task: Task, still: TrainingPause) -> BackgroundWrite:
        """Have a step written behind, once what the one before replaced is gone; gives who does it."""
        before = self._pending

        def work() -> None:
            if before is not None:
                before.join()
                before.complain()
            try:
                self._write(task, still)
            except Exception:
                if not still.is_broken:  # else save itself has raised what broke it
                    raise

        self._pending = pending = BackgroundWrite(work, self._remove_hidden, self._leave_after)
        try:
            pending.start()
        except BaseException as error:
            if not pending.has_begun:
                self._pending = before  # which may still be removing files
            if isinstance(error, NoThreadError):
                raise CheckpointError(
                    f"{self._steps.path}: there is no thread to write step {task.step} behind the training ({error}): "
                    "raise the limit (ulimit -u, or the container's pids.max), or use asynchronous=False"
                ) from error
            raise
        return pending

    def _write_now(self, task: Task, still: TrainingPause) -> None:
        self._write(task, still)
        self._remove_hidden()

    def wait(self) -> None:
        """Return when what was saved is visible; raise the error if it could not be, once."""
        if self._pending is not None:
            self._pending.wait()
            self._pending.complain()

    def settle(self) -> None:
        """The same, and what it replaced is gone: nothing goes on in the folder any more."""
        pending = self._pending
        if pending is not None:
            pending.join()  # interrupted here, it goes on, and is waited for again
            self._pending = None
            pending.complain()

    def prune(self) -> list[int]:
        """Remove what is not to be kept, when nothing goes on; gives the numbers of those steps."""
        self.settle()
        self._lock.require()
        gone = self._hide()
        self._remove_hidden()
        return gone

    def close(self) -> None:
        """Settle, raise the error if there was one, give the memory back, and let others write.

        If that is interrupted, the step that is being written is, and whoever writes it leaves the folder. Nothing may
        be saved after it.
        """
        self._is_leaving = True
        try:
            self.settle()
        finally:
            if self._pending is None:
                self._leave()

    def _leave_after(self, pending: BackgroundWrite) -> None:
        if self._is_leaving and pending is self._pending:
            self._leave()

    def _leave(self) -> None:
        self._snapshot.close()
        self._lock.release()

    def _write(self, task: Task, still: TrainingPause) -> None:
        """Write a step, and hide those that are not to be kept any more."""
        try:
            if self._order is None:
                self._steps.clear_leftovers()
                self._order = max((one.order for one in self._steps.whole()[0]), default=0)
            self._order += 1
            with shown(self._manner.progress, f"saving step {task.step}") as told:
                written = write_step(task._replace(order=self._order, progress=after_a_second(told)))
        except Exception as error:
            _log.error("step %d could not be saved: %s", task.step, error)
            raise
        still.open()
        if self._manner.incremental and task.passage is None:
            self._base = written.manifest
        result, nbytes = written.result, written.manifest.nbytes
        publish(result)
        _log.info(
            "step %d saved: %s in %.2f s, %s/s by %s (%s), training stood still for %.3f s%s",
            task.step, readable(result.nbytes), result.seconds, readable(result.bandwidth), result.tool, result.route,
            still.seconds,
            "" if result.nbytes == nbytes else f", {readable(nbytes - result.nbytes)} more are as in the step before",
        )  # fmt: skip
        self._hide()

    def _hide(self) -> list[int]:
        """Make what is not to be kept invisible; gives the numbers of those steps."""
        if self._manner.keep is None:
            return []
        steps = [one.step for one in self._steps.whole()[0]]
        gone = sorted(set(steps) - kept(steps, self._manner.keep, self._manner.keep_every))
        for step in gone:
            self._hidden.append(step)  # first: of one that is visible still nothing is removed
            self._steps.hide(step)
        return gone

    def _remove_hidden(self) -> None:
        """Give the room of what is invisible back: the system takes tens of milliseconds for some gigabytes."""
        while self._hidden:
            try:
                with contextlib.suppress(FileNotFoundError):
                    self._steps.remove(self._hidden[-1])
            except OSError:
                self._hidden.pop()  # told once
                raise
            self._hidden.pop()  # not before: interrupted, it is tried again
