"""Runs the commands of a store on a few threads, reads before writes."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from fastio._native import Latch
from fastio.errors import FastIOError
from fastio.offload.stores.store_errors import without_frames
from fastio.runtime.interrupt_safe_thread import NoThreadError, WorkThread


class Command:
    """A transfer that is queued, runs, or has ended. ``error``: what it failed with.

    Whoever ``claim``s it runs or drops it. After an interrupt in between, the same thread may claim it again.
    """

    __slots__ = ("_claims", "_work", "ended", "error", "reads")

    def __init__(self, work: Callable[[], None], reads: bool) -> None:
        self._work: Callable[[], None] | None = work
        self._claims: dict[str, int] = {}  # one entry, whose setting is atomic
        self.reads = reads
        self.ended = Latch()
        self.error: Exception | None = None

    def claim(self) -> bool:
        """Return whether this thread is the one that runs or drops it."""
        mine = threading.get_ident()
        return self._claims.setdefault("by", mine) == mine and not self.ended.is_open

    def run(self) -> None:
        """Do the work. Its error is kept, not raised, except an interrupt's, which is both."""
        try:
            if self._work is not None:
                self._work()
        except (FastIOError, OSError) as error:
            self.error = without_frames(error)
        except BaseException as error:
            self.error = FastIOError(f"{type(error).__name__}: {error}")
            if not isinstance(error, Exception):
                raise
        finally:
            self.drop()

    def drop(self) -> None:
        """End it, without doing the work if it was not done."""
        self._work = None
        self.ended.open()


class BackgroundCommands:
    """At most ``threads`` threads, made when there is work for them; without any, ``wait`` does the work.

    They do not keep this object alive. Call ``close`` before the interpreter ends: a thread in the middle of a transfer
    would crash it.
    """

    def __init__(self, threads: int) -> None:
        self._most = threads
        self._queues: tuple[deque[Command], deque[Command]] = (deque(), deque())  # of reads, of writes
        self._tickets: SimpleQueue[bool] = SimpleQueue()  # one a command; False ends a thread
        self._threads: list[WorkThread] = []
        self._lock = threading.Lock()

    def add(self, command: Command) -> None:
        """Queue a command."""
        self._queues[not command.reads].append(command)
        self._tickets.put(True)
        if len(self._threads) < self._most:
            for _ in iter(partial(self._lock.acquire, False), False):  # see manager.Offload._reap for the iterator
                try:
                    self._start_thread()
                finally:
                    self._lock.release()
                break

    def wait(self, command: Command) -> None:
        """Wait until a command has ended. If no thread has begun it, this one runs it."""
        if command.claim():
            command.run()
        command.ended.wait()

    def drop(self, command: Command) -> None:
        """Drop a command if no thread has begun it, else wait until it has ended."""
        if command.claim():
            command.drop()
        command.ended.wait()

    def close(self) -> None:
        """Drop what no thread has begun, and end the threads once what they run has ended."""
        for queue in self._queues:
            while queue:
                with contextlib.suppress(IndexError):  # a thread took the last one
                    command = queue.popleft()
                    if command.claim():
                        command.drop()
        for _ in self._threads:
            self._tickets.put(False)
        if not getattr(_this_thread, "works", False):  # else the last reference was a command's
            for thread in self._threads:
                thread.wait()
        self._threads.clear()

    def _start_thread(self) -> None:
        thread = WorkThread(_worker(self._tickets, self._queues))
        self._threads.append(thread)  # first: an interrupt must not leave a thread that nobody ends
        try:
            thread.start()
        except NoThreadError:
            self._threads.pop()
            self._most = len(self._threads)


_this_thread = threading.local()


def _worker(tickets: SimpleQueue[bool], queues: tuple[deque[Command], ...]) -> Callable[[], None]:
    def work() -> None:
        _this_thread.works = True
        while tickets.get():
            for queue in queues:
                try:
                    command = queue.popleft()
                except IndexError:
                    continue
                if command.claim():  # else a caller that waits for it runs it
                    command.run()
                del command
                break

    return work
