"""Writes steps one after the other, and removes those that are not to be kept."""

from __future__ import annotations

import contextlib
from typing import Any

from fastio.checkpoint.folder.step_folders import StepFolder
from fastio.checkpoint.retention import kept
from fastio.checkpoint.saving.writing import Task, WrittenStep, write_step


class StepWriter:
    """Writes steps into a folder whose lock its user holds; ``keep`` and ``keep_every`` say which steps stay."""

    def __init__(self, steps: StepFolder, keep: int | None, keep_every: int | None) -> None:
        self._steps = steps
        self._keep, self._keep_every = keep, keep_every
        self._hidden: list[int] = []  # steps whose files are still there
        self._order: int | None = None  # the number of saves into this folder; unknown before the first write

    def next_order(self) -> int:
        """Return the number of the next save into this folder; the first call removes what killed writers left."""
        if self._order is None:
            self._steps.clear_leftovers()
            self._order = max((manifest.order for manifest in self._steps.read_manifests()[0]), default=0)
        self._order += 1
        return self._order

    def ordered(self, task: Any, pid: int) -> Any:
        """Return a task as the writer process ``pid`` needs it; None if a thread writes it, from the live state."""
        return task._replace(order=self.next_order()) if task.chunk_memory is None else None

    def write(self, task: Task) -> WrittenStep:
        """Write a step, as number ``task.order`` or, if that is 0, as the next one; raises as ``write_step`` does."""
        if not task.order:
            task = task._replace(order=self.next_order())
        with self._steps.staged(task.step, lambda: _tick(task)) as folder:
            return write_step(task._replace(folder=folder))

    def hide(self) -> list[int]:
        """Make the steps that are not to be kept invisible; return their numbers."""
        if self._keep is None:
            return []
        steps = [manifest.step for manifest in self._steps.read_manifests()[0]]
        gone = sorted(set(steps) - kept(steps, self._keep, self._keep_every))
        for step in gone:
            self._hidden.append(step)  # before hiding it: remove() does nothing to a step that is still visible
            self._steps.hide(step)
        return gone

    def prune(self) -> list[int]:
        """Remove the steps that are not to be kept; return their numbers."""
        gone = self.hide()
        self.remove_hidden()
        return gone

    def remove_hidden(self) -> None:
        """Remove the files of hidden steps. The system takes tens of milliseconds for some gigabytes."""
        while self._hidden:
            try:
                with contextlib.suppress(FileNotFoundError):
                    self._steps.remove(self._hidden[-1])
            except OSError:
                self._hidden.pop()  # the error is raised once
                raise
            self._hidden.pop()  # afterwards, so that an interrupted removal is tried again


def _tick(task: Task) -> None:
    """Report that all is written here, so that a write without time left ends."""
    if task.progress is not None:
        task.progress(task.nbytes, task.nbytes)
