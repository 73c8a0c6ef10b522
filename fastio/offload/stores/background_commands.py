"""Runs the commands of a store on a few threads, reads before writes."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain
from queue import Empty, SimpleQueue

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
    """At most ``threads`` threads, which ``start`` makes; without any, ``wait`` does the work.

    They do not keep this object alive. Call ``close`` before the interpreter ends: a thread in the middle of a transfer
    would crash it.

    Attributes:
        put: queues a command. It is one call of C, so an interrupt comes before or after it: a caller that remembers a
            command in the statement before, without a call, never has one that is remembered and not queued.
    """

    def __init__(self, threads: int) -> None:
        self._most = threads
        self._queue: SimpleQueue[Command | None] = SimpleQueue()  # None ends a thread
        self._preferred: deque[Command] = deque()  # these are in the queue, too
        self._threads: list[WorkThread] = []
        self._lock = threading.Lock()
        self.put = self._queue.put

    def start(self) -> None:
        """Make one thread more, if there may be more. Call it before ``put``: an interrupt may come in between."""
        if len(self._threads) < self._most or not all(thread.has_begun for thread in self._threads):
            for _ in iter(partial(self._lock.acquire, False), False):  # see manager.Offload._reap for the iterator
                try:
                    self._start_thread()
                finally:
                    self._lock.release()
                break

    def prefer(self, command: Command) -> None:
        """Run a command that was ``put`` before the others."""
        self._preferred.append(command)

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
        with contextlib.suppress(Empty):
            while True:
                command = self._queue.get_nowait()
                if command is not None and command.claim():
                    command.drop()
        self._preferred.clear()
        for _ in self._threads:
            self._queue.put(None)
        if not getattr(_this_thread, "works", False):  # else the last reference was a command's
            for thread in self._threads:
                thread.wait()
        self._threads.clear()

    def _start_thread(self) -> None:
        self._threads[:] = [thread for thread in self._threads if thread.has_begun]  # an interrupted start never begins
        if len(self._threads) >= self._most:
            return
        thread = WorkThread(_worker(self._queue, self._preferred))
        self._threads.append(thread)  # first: an interrupt must not leave a thread that nobody ends
        try:
            thread.start()
        except NoThreadError:
            self._threads.pop()
            self._most = len(self._threads)


_this_thread = threading.local()


def _worker(queue: SimpleQueue[Command | None], preferred: deque[Command]) -> Callable[[], None]:
    def work() -> None:
        _this_thread.works = True
        for command in iter(queue.get, None):
            for one in chain(iter(partial(_first, preferred), None), (command,)):
                if one.claim():  # else another thread runs it, or a caller that waits for it
                    one.run()
            del command, one

    return work


def _first(commands: deque[Command]) -> Command | None:
    try:
        return commands.popleft()
    except IndexError:
        return None
