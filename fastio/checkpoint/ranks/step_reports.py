"""What the writer processes of ranks tell each other: by files in the unfinished folder of a step.

The first rank's process makes the folder and marks it with a token of the step. Each other one leaves a report there
when its part is durable, or when it failed. The first one waits for all reports, and publishes the step. So they need
no process group, and the training processes may be gone. All these files are marks of an unfinished step: they go with
it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.storage import WriteResult

from fastio.checkpoint.folder.lock import is_running
from fastio.checkpoint.folder.manifest import NAME, File
from fastio.checkpoint.saving.rank_file import Report
from fastio.distributed import metadata as metadata_file
from fastio.errors import CheckpointError, RankError, TransferError
from fastio.files.atomic_file import sync_folder
from fastio.files.full_write import write_all

_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.1  # seconds between two looks


class StepGoneError(CheckpointError):
    """There is no folder of a step to write into, because another rank failed."""


class Writer(NamedTuple):
    """A writer process, by its host, the host's namespace of processes, and its number there."""

    host: str
    namespace: int
    pid: int

    @classmethod
    def here(cls, pid: int) -> Writer:
        """The process that has that number here."""
        return cls(socket.gethostname(), _namespace(), pid)

    @property
    def has_ended(self) -> bool:
        """Whether it is known to have ended: of one whose numbers are not those here, nothing is."""
        return self.is_beside(Writer.here(0)) and not is_running(self.pid)

    def is_beside(self, other: Writer) -> bool:
        """Whether another process sees this one under its number."""
        return (self.host, self.namespace) == (other.host, other.namespace)


def _namespace() -> int:
    """The number of this process's namespace of processes: containers of one host may have several."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


class StepReports:
    """The reports of a step in its unfinished folder ``path``. ``writers`` are the processes of all ranks.

    A process that has ended, or is silent for ``seconds``, fails the step.
    """

    def __init__(self, path: str, token: str, writers: Sequence[Writer], seconds: float) -> None:
        self._path, self._token, self._writers, self._seconds = path, token, writers, seconds
        self._begun = self._path_of("begun")

    @property
    def is_begun(self) -> bool:
        """Whether the first rank's process made the folder for this step, and has not removed it."""
        return os.path.exists(self._begun)

    def begin(self) -> None:
        """Tell the other processes that the folder is that of this step. TransferError if the system refuses."""
        try:
            open(self._begun, "xb").close()
        except OSError as error:
            raise TransferError(error.errno or 0, "marking the folder of a step", self._begun) from error

    def wait_until_begun(self) -> None:
        """Return when the folder is there. StepGoneError if the first rank's process does not make it."""
        try:
            self._wait(lambda: self.is_begun, 0)
        except CheckpointError as error:
            raise StepGoneError(str(error)) from None

    def leave(self, rank: int, report: Report) -> None:
        """Leave the report of a rank, durably. TransferError if the system refuses."""
        content = [tuple(file) for file in report.files]
        places = {result.index: result.storage_data for result in report.results}
        self._leave(rank, Metadata({}, planner_data=content, storage_data=places))

    def leave_failure(self, rank: int, error: Exception) -> None:
        """Leave the error of a rank, if that is possible: else the first rank's process waits until this one ends."""
        with contextlib.suppress(TransferError):
            self._leave(rank, Metadata({}, planner_data=f"{type(error).__name__}: {error}", storage_data={}))

    def collected(self) -> list[Report]:
        """Return the reports of all ranks but the first. RankError names one that failed, ended, or is silent."""
        reports = []
        for rank in range(1, len(self._writers)):
            path = self._path_of(f"{rank}")
            try:
                self._wait(lambda path=path: os.path.exists(path), rank)  # type: ignore[misc]
                reports.append(_report_in(metadata_file.read_file(path)))
            except CheckpointError as error:
                raise RankError({rank: error}) from error
        return reports

    def _path_of(self, what: str) -> str:
        return os.path.join(self._path, f".{NAME}.fastio-{self._token}-{what}.tmp")

    def _leave(self, rank: int, content: Metadata) -> None:
        path = self._path_of(f"{rank}")
        new = self._path_of(f"{rank}-new")
        try:
            with open(new, "xb") as file:
                write_all(new, file.fileno(), memoryview(metadata_file.pickled(content)), 0)
                os.fsync(file.fileno())
            os.rename(new, path)
            sync_folder(self._path)
        except OSError as error:
            raise TransferError(error.errno or 0, "reporting a part of a step", path) from error

    def _wait(self, is_there: Callable[[], bool], rank: int) -> None:
        """Return when something is there that the process of a rank makes."""
        end, pause = time.monotonic() + self._seconds, _FIRST_PAUSE
        while True:
            has_ended = self._writers[rank].has_ended  # before the look: it may make the file and end
            if is_there():
                return
            if has_ended:
                raise CheckpointError(f"{self._path}: the writer process of rank {rank} ended before its part was done")
            if time.monotonic() > end:
                raise CheckpointError(
                    f"{self._path}: the writer process of rank {rank} on {self._writers[rank].host} did not finish "
                    f"its part within {self._seconds:.0f} s, or its files are not seen here: all ranks must write to "
                    "one file system"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _report_in(content: Metadata) -> Report:
    """The report that :meth:`StepReports.leave` stored; CheckpointError if it is a failure."""
    stored: Any = content.planner_data
    if isinstance(stored, str):
        raise CheckpointError(stored)
    results = [WriteResult(index, info.length, info) for index, info in content.storage_data.items()]
    return Report([File(*file) for file in stored], results)
