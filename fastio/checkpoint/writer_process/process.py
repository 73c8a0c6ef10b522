"""Starts the writer process, sends it steps, and gets its results and errors."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any, NoReturn

from fastio.checkpoint.folder.step_folders import StepFolder
from fastio.checkpoint.saving.shared_staging import SharedStaging
from fastio.checkpoint.saving.writing import WrittenStep
from fastio.checkpoint.writer_process.messages import (
    FREED,
    PROGRESS,
    REMOVED,
    WRITTEN,
    StagedPart,
    StagedStep,
    WriterSettings,
    memory_file_of,
    places_in,
)
from fastio.errors import CheckpointError

_CODE = "import sys; sys.path[:] = {path!r}; from fastio.checkpoint.writer_process.main import main; main()"
_BLOCKED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
_TICK_SECONDS, _END_SECONDS = 0.1, 30.0
_ENDS_OF_A_PIPE = (EOFError, OSError)  # OSError: in the middle of a message

_log = logging.getLogger("fastio.checkpoint")


class WriterProcess:
    """One process, ``pid``; it begins to start when this is made. Once it is lost, make another.

    It inherits the descriptors ``inherited``: of the folder's lock, and of the folder if its path has one.

    For each step call :meth:`stage`, then :meth:`write` and :meth:`remove_hidden`, in the order of the stages; those
    two may run on another thread.
    """

    def __init__(self, steps: StepFolder, settings: WriterSettings, inherited: Sequence[int]) -> None:
        self._steps = steps
        self._connection, other = Pipe()
        self._complaints = os.memfd_create("fastio-writer", os.MFD_CLOEXEC)
        command = [sys.executable, "-c", _CODE.format(path=sys.path), str(other.fileno())]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)  # the child inherits it, and leaves it so
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._complaints,
                pass_fds=[other.fileno(), *inherited],
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._complaints)
            raise CheckpointError(f"{steps.path}: no process to write steps could be started: {error}") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            other.close()
        self.pid = self._process.pid
        self._end = weakref.finalize(self, _end, self._connection, self._process, self._complaints, os.getpid())
        self._end.atexit = False
        _all.add(self)
        self._connection.send(settings)

    @property
    def is_lost(self) -> bool:
        """Whether the process has ended."""
        return not self._end.alive or self._process.poll() is not None

    def stage(self, task: Any, memory: SharedStaging) -> None:
        """Send a step whose copy is in ``memory``: from now on it is written, even if this process dies.

        Returns before it is read. BrokenPipeError if the process is lost.
        """
        fd = memory_file_of(self._message(task, memory))
        try:
            self._connection.send(memory.nbytes)
            send_handle(self._connection, memory.fd, self._process.pid)
            send_handle(self._connection, fd, self._process.pid)
        finally:
            os.close(fd)

    def write(self, task: Any) -> WrittenStep:
        """Wait until a staged step is written, report its progress, and raise its error.

        An error of the function that progress is reported to ends the process: nothing of the step is left.
        CheckpointError if the process is lost.
        """
        written: WrittenStep = self._outcome(task)
        return written

    def _message(self, task: Any, memory: SharedStaging) -> StagedStep | StagedPart:
        """What is sent of a task."""
        base, unchanged = (None, set()) if task.base is None else (task.base.manifest, task.base.unchanged())
        small, storages = list(task.records.small), places_in(memory.address, task.records.storages)
        return StagedStep(
            task.step, task.order, small, storages, task.image, task.metadata, base, unchanged, dict(task.crcs)
        )

    def _outcome(self, task: Any) -> Any:
        """What the process says that it has written; its error is raised."""
        at = (0, sum(nbytes for _, _, nbytes in task.storages))
        self._tell(task, at)
        while True:
            kind, value = self._next(task, at)
            if kind == WRITTEN:
                return value
            if kind == REMOVED:
                continue  # of the step before, which failed here after it was written
            if kind == FREED:
                task.staged_is_free()
                continue
            if kind != PROGRESS:
                raise value
            at = value

    def hide(self) -> list[int]:
        """The process has made the steps that are not to be kept invisible."""
        return []

    def remove_hidden(self) -> None:
        """Wait until the process has removed the files of those steps. Raises its error; removes them if it is lost."""
        try:
            _, error = self._connection.recv()
        except _ENDS_OF_A_PIPE:
            self._clear()
            return
        if error is not None:
            raise error

    def kill(self) -> None:
        """End the process at once, and remove what it left of a step."""
        self._process.kill()
        self._clear()

    def close(self) -> None:
        """End the process, which must have written all, and wait for it."""
        self._end()

    def _next(self, task: Any, at: tuple[int, int]) -> tuple[str, Any]:
        """Return the next message; report progress until it comes."""
        try:
            while not self._connection.poll(_TICK_SECONDS):
                self._tell(task, at)
            kind, value = self._connection.recv()
        except _ENDS_OF_A_PIPE:
            self._tell(task, at)  # raises if a later step's thread ended the process, its time being over
            self._raise_lost(task.step)
        if kind == PROGRESS:
            self._tell(task, value)
        return kind, value

    def _tell(self, task: Any, at: tuple[int, int]) -> None:
        try:
            if task.progress is not None:
                task.progress(*at)
        except BaseException:
            self.kill()
            raise

    def _raise_lost(self, step: int) -> NoReturn:
        status = self._process.wait()
        ended = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        said = os.pread(self._complaints, 1 << 20, 0).decode("utf-8", "replace").strip().splitlines()[-1:]
        self._clear()
        raise CheckpointError(
            f"{self._steps.path}: step {step} was not written: the writer process {ended}"
            f"{': ' + said[0] if said else ''}; save again, which starts another one"
        )

    def _clear(self) -> None:
        """Remove what the process left of a step."""
        self._process.wait()
        try:
            self._steps.clear_leftovers()
        except Exception as error:
            _log.warning("what the writer process left in %s could not be removed yet: %s", self._steps.path, error)


def _end(connection: Connection[Any, Any], process: subprocess.Popen[bytes], complaints: int, owner: int) -> None:
    """Let the process end, which it does when nothing more can come."""
    with contextlib.suppress(OSError):
        connection.close()
    if os.getpid() != owner:
        return
    os.close(complaints)
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


_all: weakref.WeakSet[WriterProcess] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # A child that kept the socket open would keep the writer process waiting after the end of its parent.
    for own in list(_all):
        with contextlib.suppress(OSError):
            own._connection.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
