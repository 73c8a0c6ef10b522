"""Saves steps: takes the snapshot, writes it in the background, and removes earlier steps."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from fastio.checkpoint import torch_fallback
from fastio.checkpoint.background_write import BackgroundWrite
from fastio.checkpoint.folder.incremental_links import BaseStep
from fastio.checkpoint.folder.lock import FolderLock
from fastio.checkpoint.folder.manifest import Manifest
from fastio.checkpoint.folder.step_folders import StepFolder
from fastio.checkpoint.restoring.outline import freed_tensors
from fastio.checkpoint.retention import kept
from fastio.checkpoint.saving.chunked_save import ChunkMemory
from fastio.checkpoint.saving.picklers import pickle_module_for
from fastio.checkpoint.saving.refused_objects import RefusedObjects
from fastio.checkpoint.saving.snapshot import Snapshot, Storage
from fastio.checkpoint.saving.writing import Task, write_step
from fastio.checkpoint.state import capture
from fastio.checkpoint.training_pause import TrainingPause
from fastio.engine.delayed_progress import after_a_second
from fastio.engine.unpicklable import name_unpicklable
from fastio.errors import CheckpointError
from fastio.formats.pt import torch_probe
from fastio.formats.pt.records import Records, pickled
from fastio.progress import shown
from fastio.results import publish
from fastio.runtime.gc_pause import gc_paused
from fastio.runtime.interrupt_safe_thread import POLL_SECONDS, NoThreadError
from fastio.sizes import exact_size, format_size

_log = logging.getLogger("fastio.checkpoint")
_PICKLE_PROTOCOL = 2
# If at least this many bytes are known to have changed, they are written while the rest is still being compared.
_WORTH_AN_EARLY_START = 32 << 20


class SaveSettings(NamedTuple):
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
    """Raise CheckpointError for tensors whose memory was freed: torch.save writes them, but cannot load them."""
    empty = {name for name, _, nbytes in storages if nbytes == 0}
    if empty and (freed := freed_tensors(dict(small)["data.pkl"], empty)):
        raise CheckpointError(
            f"the memory of {', '.join(freed)} was freed (untyped_storage().resize_(0)): give it back before the save, "
            "or leave it out"
        )


def _pickled(tree: Any, module: Any, where: str) -> tuple[Sequence[tuple[str, bytes]], Sequence[Storage], Any]:
    """The records of a tree. An error names the step and the entry that cannot be pickled."""
    try:
        return pickled(tree, _PICKLE_PROTOCOL, pickle_module=module)
    except Exception as error:
        name_unpicklable(error, tree, "state", where, _PICKLE_PROTOCOL, module)
        raise


class Saver:
    """Saves steps into a folder, one at a time. It holds the folder's lock until it is closed and all work is done."""

    def __init__(self, steps: StepFolder, settings: SaveSettings) -> None:
        self._lock = FolderLock(steps.path)
        self._steps = steps
        self._settings = settings
        self._snapshot = Snapshot(comparable=settings.incremental)
        self._background_write: BackgroundWrite | None = None
        self._base: Manifest | None = None  # the step that the snapshot holds
        self._hidden: list[int] = []  # steps whose files are still there
        self._refused_objects = RefusedObjects()
        self._is_closing = False
        self._has_told_full = False
        self._order: int | None = None  # the number of saves into this folder; unknown before the first write

    @property
    def is_busy(self) -> bool:
        """Whether a step is still being written."""
        return self._background_write is not None and self._background_write.is_working

    def described(self) -> list[str]:
        """Its main settings, in words."""
        settings = self._settings
        return [
            "keeps all steps" if settings.keep is None else f"steps kept: {settings.keep}",
            *([] if settings.keep_every is None else [f"multiples of {settings.keep_every} stay"]),
            "asynchronous" if settings.asynchronous else "synchronous",
            *(["incremental"] if settings.incremental else []),
        ]

    def save(self, step: int, state: Any, metadata: dict[str, Any]) -> None:
        """Save a step after the step before is written; raises the error of that step, if it had one."""
        self.wait()
        self._lock.require()
        settings = self._settings
        pause = TrainingPause()
        image = None
        small: Sequence[tuple[str, bytes]] = ()
        storages: Sequence[Storage] = ()
        with gc_paused():
            tree = capture(state)
            module = pickle_module_for(tree)
            if torch_probe.unsupported_reason():
                image = torch_fallback.image_of(tree, module)
            else:
                where = f"{self._steps.path}: step {step}"
                small, storages, _ = _pickled(tree, module, where)
                _require_memory(small, storages)
                data = dict(small)["data.pkl"]
                self._refused_objects.tell(tree, data, _PICKLE_PROTOCOL, module, where, stacklevel=3)
        base, self._base = self._base, None
        task = Task(
            self._steps, step, 0, Records(small, storages), image, metadata, base=None, chunk_memory=None,
            is_snapshot=False, policy=settings.policy, read_back=settings.read_back, progress=None,
        )  # fmt: skip
        total = sum(nbytes for _, _, nbytes in storages)
        if settings.asynchronous and settings.memory_budget is not None and total > settings.memory_budget:
            self._tell_full(total, settings.memory_budget)
            task = task._replace(chunk_memory=ChunkMemory(self._snapshot, settings.memory_budget, pause))
            with pause:
                write = self._start(task, pause)
                while not pause.wait(POLL_SECONDS):
                    if not write.is_working:  # it ended without opening the pause
                        write.raise_error()
        elif settings.asynchronous or settings.incremental:
            self._copy(task, storages, base, pause)
        else:
            self._write_now(task, pause)

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
            stacklevel=4,
        )

    def _copy(self, task: Task, storages: Sequence[Storage], base: Manifest | None, pause: TrainingPause) -> None:
        """Take a snapshot and save it; storages that soon prove changed are written while others are compared."""
        copies = self._snapshot.allocate(storages)
        task = task._replace(records=Records(task.records.small, copies), is_snapshot=True)
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
            if self._settings.asynchronous and base is not None and nbytes >= _WORTH_AN_EARLY_START:
                has_begun = True
                self._start(task._replace(base=BaseStep(base, unchanged, frozenset(changed))), pause)

        with pause:
            same |= self._snapshot.take(storages, begin)
            if self._settings.asynchronous:
                pause.open()  # inside the context, so that an interrupt cannot leave the writer waiting
        if has_begun:
            return
        task = task._replace(base=BaseStep(base, lambda: same) if base is not None and same else None)
        if self._settings.asynchronous:
            self._start(task, pause)
        else:
            self._write_now(task, pause)

    def _start(self, task: Task, pause: TrainingPause) -> BackgroundWrite:
        """Start to write a step in the background, after the write before removed the steps that it replaced."""
        before = self._background_write

        def work() -> None:
            if before is not None:
                before.join()
                before.raise_error()
            try:
                self._write(task, pause)
            except Exception:
                if not pause.is_broken:  # if it is, save itself raises the error that broke it
                    raise

        self._background_write = write = BackgroundWrite(work, self._remove_hidden, self._release_after)
        try:
            write.start()
        except BaseException as error:
            if not write.has_begun:
                self._background_write = before  # which may still be removing files
            if isinstance(error, NoThreadError):
                raise CheckpointError(
                    f"{self._steps.path}: there is no thread to write step {task.step} in the background ({error}): "
                    "raise the limit (ulimit -u, or the container's pids.max), or use asynchronous=False"
                ) from error
            raise
        return write

    def _write_now(self, task: Task, pause: TrainingPause) -> None:
        self._write(task, pause)
        self._remove_hidden()

    def wait(self) -> None:
        """Return when the saved step is visible; raise its error, once, if the save failed."""
        if self._background_write is not None:
            self._background_write.wait()
            self._background_write.raise_error()

    def join(self) -> None:
        """Wait as :meth:`wait` does, and until the steps that it replaced are removed."""
        write = self._background_write
        if write is not None:
            write.join()  # if this is interrupted, the next call waits again
            self._background_write = None
            write.raise_error()

    def prune(self) -> list[int]:
        """Remove the steps that are not to be kept, after any write has ended; return their numbers."""
        self.join()
        self._lock.require()
        gone = self._hide()
        self._remove_hidden()
        return gone

    def close(self) -> None:
        """Wait for the write, free the memory, release the lock, and raise the write's error if there was one.

        If this is interrupted, the write continues, and releases memory and lock at its end. Nothing may be saved after
        a call.
        """
        self._is_closing = True
        try:
            self.join()
        finally:
            if self._background_write is None:
                self._release()

    def _release_after(self, write: BackgroundWrite) -> None:
        if self._is_closing and write is self._background_write:
            self._release()

    def _release(self) -> None:
        self._snapshot.close()
        self._lock.release()

    def _write(self, task: Task, pause: TrainingPause) -> None:
        """Write a step, and hide the steps that are not to be kept any more."""
        try:
            if self._order is None:
                self._steps.clear_leftovers()
                self._order = max((manifest.order for manifest in self._steps.read_manifests()[0]), default=0)
            self._order += 1
            with shown(self._settings.progress, f"saving step {task.step}") as on_progress:
                written = write_step(task._replace(order=self._order, progress=after_a_second(on_progress)))
        except Exception as error:
            _log.error("step %d could not be saved: %s", task.step, error)
            raise
        pause.open()
        if self._settings.incremental and task.chunk_memory is None:
            self._base = written.manifest
        result, nbytes = written.result, written.manifest.nbytes
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
            "" if result.nbytes == nbytes else f", {format_size(nbytes - result.nbytes)} are linked to the step before",
        )
        self._hide()

    def _hide(self) -> list[int]:
        """Make the steps that are not to be kept invisible; return their numbers."""
        if self._settings.keep is None:
            return []
        steps = [manifest.step for manifest in self._steps.read_manifests()[0]]
        gone = sorted(set(steps) - kept(steps, self._settings.keep, self._settings.keep_every))
        for step in gone:
            self._hidden.append(step)  # before hiding it: remove() does nothing to a step that is still visible
            self._steps.hide(step)
        return gone

    def _remove_hidden(self) -> None:
        """Remove the files of hidden steps. The system takes tens of milliseconds for some gigabytes."""
        while self._hidden:
            try:
                with contextlib.suppress(FileNotFoundError):
                    self._steps.remove(self._hidden[-1])
            except OSError:
                self._hidden.pop()  # the error is raised once
                raise
            self._hidden.pop()  # afterwards, so that an interrupted removal is tried again
