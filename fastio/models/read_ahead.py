"""Reads parts of files on background threads before they are asked for, a bounded number of bytes ahead.

Two batches are read at once: the disk, the cores and the device stay busy while Python prepares one or hands one out.

A thread never waits: it ends when the budget is full or all is read, and the next :meth:`ReadAhead.take` starts
another one. So nothing keeps the interpreter from its exit, and a fork finds no thread that it would lack.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any

import torch

from fastio._native import Latch
from fastio.models.part_batches import Batch, Part
from fastio.runtime.fork_safe_lock import lock_across_forks
from fastio.runtime.interrupt_safe_thread import POLL_SECONDS, NoThreadError, WorkThread

_THREADS = 2
_lock = lock_across_forks()  # one for all: it is held for microseconds


@dataclass(slots=True, eq=False)
class _Read:
    """A batch and its state. ``process``: the one that reads it or has read it, 0 before. ``thread``: None if it is a
    user's. ``tensors``: those that were not taken; None before they were read, and if that failed."""

    batch: Batch
    nbytes: int
    process: int = 0
    thread: WorkThread | None = None
    ended: Latch = field(default_factory=Latch)
    tensors: list[torch.Tensor | None] | None = None

    @property
    def is_under_way(self) -> bool:
        """False in a forked child, and if the thread ended for want of memory."""
        return self.thread.is_running if self.thread is not None else self.process == os.getpid()


class ReadAhead:
    """Reads batches in their order, while at most ``budget`` bytes (None: any number) were read and not taken.

    A batch larger than the budget is read when nothing else is held. ``read`` returns a batch's tensors.
    """

    def __init__(
        self, batches: Sequence[Batch], read: Callable[[Batch], list[torch.Tensor]], budget: int | None
    ) -> None:
        self._reads = [_Read(batch, batch.nbytes) for batch in batches]
        self._read = read
        self._budget: float = inf if budget is None else budget
        self._next = 0  # all reads before it were begun
        self._held = 0  # bytes of the batches that are being read, and of tensors that were not taken
        self._threads: list[WorkThread] = []

    @cached_property
    def _places(self) -> dict[object, list[tuple[_Read, int]]]:
        """Where each part is read."""
        found: dict[object, list[tuple[_Read, int]]] = {}
        for one in self._reads:
            for place, part in enumerate(one.batch.parts):
                found.setdefault(_key(part), []).append((one, place))
        return found

    def start(self) -> None:
        """Start a thread, unless enough read already or there is nothing to read.

        Each :meth:`take` does so too: the first batch has the machine to itself.
        """
        with _lock:
            if self._first_that_fits() is None:
                return
            self._threads = [one for one in self._threads if one.is_running or not one.has_begun]
            if len(self._threads) == _THREADS:
                return
            thread = WorkThread(lambda: self._work(thread), "fastio-read-ahead")
            self._threads.append(thread)
        try:
            thread.start()
        except NoThreadError:
            pass  # take() reads by itself
        finally:
            if not thread.has_begun:
                with _lock:
                    self._threads.remove(thread)

    def take(self, part: Part) -> torch.Tensor | None:
        """Return the tensor of a part, once for each time it was planned; wait for it, or read it here.

        None if the part was not planned, was taken, or could not be read ahead: read it by itself, which raises the
        error that it has.
        """
        with _lock:
            places = self._places.get(_key(part))
            if not places:
                return None
            one, place = places.pop(0)
        self._wait(one)
        with _lock:
            if one.tensors is None:
                return None
            tensor, one.tensors[place] = one.tensors[place], None
            self._held -= one.batch.parts[place].nbytes
        self.start()
        return tensor

    def in_order(self) -> Iterator[tuple[Batch, list[torch.Tensor]]]:
        """Yield each batch and its tensors, last first: none if it could not be read ahead, or after :meth:`close`.

        They are the caller's to take out, and count as held until the next batch is asked for, but for a single one.
        """
        for one in self._reads:
            self._wait(one)
            is_single = len(one.batch.parts) == 1
            tensors: list[Any] = one.tensors or []
            tensors.reverse()
            if tensors and is_single:
                self._release(one.nbytes)
            self.start()
            yield one.batch, tensors
            if one.tensors is not None and not is_single:
                self._release(one.nbytes)

    def _wait(self, one: _Read) -> None:
        """Return when a batch was read, by a thread or here, or cannot be read ahead."""
        if one.ended.is_open:
            return
        with _lock:
            reads_here = self._begin(one, None)
        if reads_here:
            self._fill(one)
        while not one.ended.wait(POLL_SECONDS) and one.is_under_way:
            pass

    def _release(self, nbytes: int) -> None:
        with _lock:
            self._held -= nbytes

    def close(self) -> None:
        """Drop what was not taken, and return when no read is under way. A later ``take`` returns None."""
        with _lock:
            reads, self._reads = self._reads, []
            self._places.clear()
        for thread in list(self._threads):
            while not thread.wait(POLL_SECONDS):
                pass
        with _lock:
            left = [one.tensors for one in reads if one.tensors is not None]
            for one in reads:
                one.tensors = None
        for tensors in left:
            tensors.clear()  # a stream may be at them

    def _work(self, thread: WorkThread) -> None:
        while True:
            with _lock:
                one = self._first_that_fits()
                if one is None or not self._begin(one, thread):
                    return
            self._fill(one)

    def _first_that_fits(self) -> _Read | None:
        while self._next < len(self._reads) and self._reads[self._next].process:
            self._next += 1
        if self._next >= len(self._reads):
            return None
        one = self._reads[self._next]
        return None if self._held and self._held + one.nbytes > self._budget else one

    def _begin(self, one: _Read, thread: WorkThread | None) -> bool:
        """Whether the caller, which is ``thread`` or a user's thread, is to read the batch. The lock is held."""
        if one.process or not self._reads:
            return False
        one.process, one.thread = os.getpid(), thread
        self._held += one.nbytes
        return True

    def _fill(self, one: _Read) -> None:
        """Read a batch that was begun. An error is not kept: each of its parts is read again when it is wanted."""
        tensors: list[torch.Tensor | None] | None = None
        try:
            with contextlib.suppress(Exception):
                tensors = list(self._read(one.batch))
        finally:
            with _lock:
                if tensors is None:
                    self._held -= one.nbytes
                elif self._reads:
                    one.tensors = tensors
            one.ended.open()


def _key(part: Part) -> object:
    return part.name, part.selection
