"""Reads parts of files on a background thread before they are asked for, a bounded number of bytes ahead.

The thread never waits: it ends when the budget is full or all is read, and the next :meth:`ReadAhead.take` starts
another one. So nothing keeps the interpreter from its exit, and a fork finds no thread that it would lack.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from math import inf

import torch

from fastio._native import Latch
from fastio.models.part_batches import Batch, Part
from fastio.runtime.fork_safe_lock import lock_across_forks
from fastio.runtime.interrupt_safe_thread import POLL_SECONDS, NoThreadError, WorkThread

_lock = lock_across_forks()  # one for all: it is held for microseconds


class ReadAhead:
    """Reads batches in their order, while at most ``budget`` bytes (None: any number) were read and not taken.

    A batch larger than the budget is read when nothing else is held. ``read`` returns a batch's tensors.
    """

    def __init__(
        self, batches: Sequence[Batch], read: Callable[[Batch], list[torch.Tensor]], budget: int | None
    ) -> None:
        self._batches = batches
        self._read = read
        self._budget: float = inf if budget is None else budget
        self._places: dict[object, list[tuple[int, int]]] = {}
        for number, batch in enumerate(batches):
            for place, part in enumerate(batch.parts):
                self._places.setdefault(_key(part), []).append((number, place))
        self._unclaimed = dict.fromkeys(range(len(batches)))  # in order
        self._claims: dict[int, tuple[int, WorkThread | None]] = {}
        self._ended = [Latch() for _ in batches]
        self._results: dict[int, list[torch.Tensor | None]] = {}
        self._held = 0  # bytes of the batches that are being read, and of tensors that were not taken
        self._is_closed = False
        self._thread: WorkThread | None = None

    def start(self) -> None:
        """Start reading, unless a thread reads already or there is nothing to read."""
        with _lock:
            busy = self._thread is not None and (self._thread.is_running or not self._thread.has_begun)
            if busy or self._first_that_fits() is None:
                return
            thread = self._thread = WorkThread(self._work, "fastio-read-ahead")
        try:
            thread.start()
        except NoThreadError:
            pass  # take() reads by itself
        finally:
            if not thread.has_begun:
                self._thread = None

    def take(self, part: Part) -> torch.Tensor | None:
        """Return the tensor of a part, once for each time it was planned; wait for it, or read it here.

        None if the part was not planned, was taken, or could not be read ahead: read it by itself, which raises the
        error that it has.
        """
        with _lock:
            places = self._places.get(_key(part))
            if not places:
                return None
            number, place = places.pop(0)
            reads_here = self._claim(number, None)
        if reads_here:
            self._fill(number)
        while not self._ended[number].wait(POLL_SECONDS):
            if not self._is_being_read(number):
                break
        with _lock:
            tensors = self._results.get(number)
            if tensors is None:
                return None
            tensor, tensors[place] = tensors[place], None
            self._held -= part.nbytes
        self.start()
        return tensor

    def close(self) -> None:
        """Drop what was not taken, and return when no read is under way. A later ``take`` returns None."""
        with _lock:
            self._is_closed = True
            self._unclaimed.clear()
            self._places.clear()
        while self._thread is not None and not self._thread.wait(POLL_SECONDS):
            pass
        self._results.clear()

    def _work(self) -> None:
        while True:
            with _lock:
                number = self._first_that_fits()
                if number is None or not self._claim(number, self._thread):
                    return
            self._fill(number)

    def _first_that_fits(self) -> int | None:
        number: int | None = next(iter(self._unclaimed), None)
        if number is None or (self._held and self._held + self._batches[number].nbytes > self._budget):
            return None
        return number

    def _is_being_read(self, number: int) -> bool:
        """False in a forked child, and if the thread ended for want of memory."""
        process, thread = self._claims[number]
        return thread.is_running if thread is not None else process == os.getpid()

    def _claim(self, number: int, thread: WorkThread | None) -> bool:
        """Whether the caller, which is ``thread`` or a user's thread, is to read the batch. The lock is held."""
        if number not in self._unclaimed:
            return False
        del self._unclaimed[number]
        self._claims[number] = (os.getpid(), thread)
        self._held += self._batches[number].nbytes
        return True

    def _fill(self, number: int) -> None:
        """Read a batch that was claimed. An error is not kept: each of its parts is read again when it is wanted."""
        tensors: list[torch.Tensor | None] | None = None
        try:
            with contextlib.suppress(Exception):
                tensors = list(self._read(self._batches[number]))
        finally:
            with _lock:
                if tensors is None:
                    self._held -= self._batches[number].nbytes
                elif not self._is_closed:
                    self._results[number] = tensors
            self._ended[number].open()


def _key(part: Part) -> object:
    return part.name, part.selection
