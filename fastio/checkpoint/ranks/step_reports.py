"""What the writer processes of ranks tell each other: by files in the unpublished folder of a step.

Each leaves a report there when its part is durable, or when it failed. The first rank's process waits for all reports,
and publishes the step. So they need no process group, and the training processes may be gone. Reports have names of
marks of an unpublished step: they go with it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Sequence
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
    """The folder of a step was removed while a rank wrote into it, because another one failed."""


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
    """The reports of a step in its unpublished folder ``path``."""

    def __init__(self, path: str) -> None:
        self._path = path

    def leave(self, rank: int, report: Report) -> None:
        """Leave the report of a rank, durably. TransferError if the system refuses."""
        content = [tuple(file) for file in report.files]
        places = {result.index: result.storage_data for result in report.results}
        self._leave(rank, Metadata({}, planner_data=content, storage_data=places))

    def leave_failure(self, rank: int, error: Exception) -> None:
        """Leave the error of a rank, if that is possible: else the first rank's process waits as long as it may."""
        with contextlib.suppress(TransferError):
            self._leave(rank, Metadata({}, planner_data=f"{type(error).__name__}: {error}", storage_data={}))

    def collected(self, writers: Sequence[Writer], seconds: float) -> list[Report]:
        """Return the reports of all ranks but the first, whose processes are ``writers``.

        RankError names one that failed, that has ended, or that is silent for so many seconds.
        """
        end, pause = time.monotonic() + seconds, _FIRST_PAUSE
        found: dict[int, Report] = {}
        while True:
            is_late = time.monotonic() > end
            for rank in set(range(1, len(writers))) - found.keys():
                try:
                    report = self._report_of(rank, writers[rank])
                    if report is None and is_late:
                        raise CheckpointError(
                            f"{self._path}: the writer process of rank {rank} on {writers[rank].host} did not finish "
                            f"its part within {seconds:.0f} s, or its files are not seen here: all ranks must write "
                            "to one file system"
                        )
                except CheckpointError as error:
                    raise RankError({rank: error}) from error
                if report is not None:
                    found[rank] = report
            if len(found) == len(writers) - 1:
                return [found[rank] for rank in sorted(found)]
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _report_of(self, rank: int, writer: Writer) -> Report | None:
        """Return the report of a rank, if it is there. CheckpointError if there will be none, or it is a failure."""
        path = self._path_of(f"{rank}")
        has_ended = writer.has_ended  # before the look: it may leave the report and end
        if os.path.exists(path):
            return _report_in(metadata_file.read_file(path))
        if has_ended:
            raise CheckpointError(f"{self._path}: the writer process of rank {rank} ended before its part was done")
        return None

    def _path_of(self, what: str) -> str:
        return os.path.join(self._path, f".{NAME}.fastio-{what}.tmp")

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


def _report_in(content: Metadata) -> Report:
    """The report that :meth:`StepReports.leave` stored; CheckpointError if it is a failure."""
    stored: Any = content.planner_data
    if isinstance(stored, str):
        raise CheckpointError(stored)
    results = [WriteResult(index, info.length, info) for index, info in content.storage_data.items()]
    return Report([File(*file) for file in stored], results)
