"""Runs the commands of a store on a few threads, reads before writes."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from fastio._native import Latch
from fastio.errors import FastIOError
from fastio.offload.stores.store_errors import without_frames
from fastio.runtime.interrupt_safe_thread import NoThreadError, WorkThread


class Command:
    """A transfer that is queued, runs, or has ended. ``error``: what it failed with."""

    __slots__ = ("_work", "ended", "error", "reads")

    def __init__(self, work: Callable[[], None], reads: bool) -> None:
        self._work: Callable[[], None] | None = work
        self.reads = reads
        self.ended = Latch()
        self.error: Exception | None = None

    def run(self) -> None:
        """Do the work. Its error is kept, not raised, except an interrupt's, which is both."""
        work, self._work = self._work, None
        assert work is not None, "a command runs once"
        try:
            work()
        except (FastIOError, OSError) as error:
            self.error = without_frames(error)
        except BaseException as error:
            self.error = FastIOError(f"{type(error).__name__}: {error}")
            if not isinstance(error, Exception):
                raise
        finally:
            self.ended.open()

    def drop(self) -> None:
        """End it without doing the work."""
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
        if len(self._threads) < self._most and self._lock.acquire(blocking=False):
            try:
                thread = WorkThread(_worker(self._tickets, self._queues))
                self._threads.append(thread)  # first: an interrupt must not leave a thread that nobody ends
                thread.start()
            except NoThreadError:
                self._threads.pop()
                self._most = len(self._threads)
            finally:
                self._lock.release()

    def wait(self, command: Command) -> None:
        """Wait until a command has ended. If no thread has begun it, this one runs it."""
        if self.take(command):
            command.run()
        command.ended.wait()

    def take(self, command: Command) -> bool:
        """Take a command out of the queue. Return whether no thread has begun it."""
        try:
            self._queues[not command.reads].remove(command)
        except ValueError:
            return False
        return True

    def close(self) -> None:
        """Drop what no thread has begun, and end the threads once what they run has ended."""
        for queue in self._queues:
            while queue:
                with contextlib.suppress(IndexError):  # a thread took the last one
                    queue.popleft().drop()
        threads, self._threads = self._threads, []
        for _ in threads:
            self._tickets.put(False)
        if not getattr(_this_thread, "works", False):  # else the last reference was a command's
            for thread in threads:
                thread.wait()


_this_thread = threading.local()


def _worker(tickets: SimpleQueue[bool], queues: tuple[deque[Command], ...]) -> Callable[[], None]:
    def work() -> None:
        _this_thread.works = True
        while tickets.get():
            for queue in queues:
                try:
                    command = queue.popleft()
                except IndexError:  # taken by a caller that waits for it
                    continue
                command.run()
                del command
                break

    return work
