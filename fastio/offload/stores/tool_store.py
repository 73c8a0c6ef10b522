"""Stores feature maps in separate files, each by the tool that WRDic chooses (Fastensor, sections 4 and 5).

Synchronous, as in the paper: ``write`` and ``read`` return when all bytes have moved. The tool that wrote a file reads
it back, and the dictionary learns both times, so that it chooses by their sum.
"""

from __future__ import annotations

import errno
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fastio import dicts
from fastio._native import Descriptor, allocate
from fastio.engine.executor import Execution, Outcome, call_transport, execute
from fastio.engine.plan import TransferPlan
from fastio.engine.tool_selection import plan_transfer
from fastio.errors import CorruptFileError, FastIOError, FolderMissingError, TransferError
from fastio.offload.stores.endurance import Drive
from fastio.offload.stores.store_errors import StoreGoneError
from fastio.offload.stores.store_places import open_unnamed
from fastio.runtime.native_errors import translate_native_errors
from fastio.transports import registry
from fastio.transports.transport import LOAD, SAVE, Extent, ReadRequest, Span, TransportResult, WriteRequest

FORMAT = "raw"  # the files hold only the bytes; a format of their own keeps their times out of other dictionaries
_BLOCK = 4096
_HOST = {torch.device("cpu")}


@dataclass(frozen=True, slots=True)
class ToolStats:
    """Counts since the store was opened. Bytes are whole blocks of 4096. ``tools`` counts blobs by writer."""

    bytes_written: int
    bytes_read: int
    bytes_used: int
    tools: dict[str, int]
    seconds: float  # since the store was opened
    drive_nbytes: int
    drive_writes_per_day: float
    lifetime_days: float  # of a drive rated at 3 drive writes a day for 5 years


@dataclass(slots=True)
class _File:
    """A blob's file, and the tools to read it with, its writer first."""

    descriptor: Descriptor
    nbytes: int
    tools: tuple[str, ...] = ()

    @property
    def fd(self) -> int:
        return self.descriptor.fileno()


class ToolStore:
    """Blobs in unnamed files of a folder; a :class:`fastio.offload.stores.tiers.Store` and a context manager.

    ``policy`` is what :func:`fastio.save` takes: a mode (``"w+r"`` is WRDic), a dictionary or its path, or the name of
    a tool. Files are not synced, and a tool that uses the page cache may leave its data there. Each blob is an open
    file: ``ulimit -n`` limits their number. Any thread may call any method; one transfer runs at a time.

    Raises FolderMissingError, TransferError, and ValueError for an unknown policy; transfers after ``close`` raise
    StoreGoneError. If a tool fails, the next one is used, and :attr:`notes` say so.
    """

    def __init__(self, folder: str | os.PathLike[str], policy: Any = "w+r") -> None:
        dicts.resolve(policy, SAVE, registry.names())
        self.folder = os.fspath(folder)
        self._policy = policy
        try:
            filesystem = os.statvfs(os.path.join(self.folder, ""))
        except FileNotFoundError:
            raise FolderMissingError(self.folder) from None
        except OSError as error:
            raise TransferError(error.errno or errno.EIO, "opening the tool store", self.folder) from None
        self._drive = Drive(filesystem.f_blocks * filesystem.f_frsize)
        self._opened = time.monotonic()
        self._files: dict[int, _File] = {}
        self._written = self._read = 0
        self._tools: Counter[str] = Counter()
        self._notes: Counter[str] = Counter()
        # Reentrant: the garbage collector may free another Offload's blob during this thread's transfer.
        self._lock = threading.RLock()
        self._finalizer = weakref.finalize(self, _close, self._files)

    @property
    def notes(self) -> tuple[str, ...]:
        """What did not go as planned, and how often."""
        return tuple(note if count == 1 else f"{note} ({count} times)" for note, count in self._notes.items())

    def write(self, index: int, address: int, nbytes: int) -> None:
        """Write a new blob. ValueError if the index is taken, TransferError (ENOSPC) if there is no room."""
        with self._lock:
            self._require_open()
            if index in self._files:
                raise ValueError(f"index {index} is in the tool store of {self.folder} already; free it first")
            began = time.perf_counter()
            file = self._files[index] = _File(self._create(index), nbytes)
            try:
                if nbytes:
                    file.tools = self._fill(index, file, address, began)
                    self._written += _blocks(nbytes)
            except BaseException:
                self.free(index)
                raise

    def read(self, index: int, address: int, nbytes: int) -> None:
        """Read a blob's first ``nbytes``. IndexError if there is no such blob, ValueError if it is shorter.

        A failed read may be retried.
        """
        with self._lock:
            file = self._file(index)
            if nbytes > file.nbytes:
                raise ValueError(f"cannot read {nbytes} bytes of index {index}, which has {file.nbytes}")
            if nbytes:
                self._fetch(index, file, address, nbytes)
                self._read += _blocks(nbytes)

    def update(self) -> int:
        """Return 0: nothing is ever pending."""
        self._require_open()
        return 0

    def is_done(self, index: int) -> bool:
        """Return True: transfers end before their call returns. IndexError if there is no such blob."""
        self._file(index)
        return True

    def wait(self, index: int) -> None:
        """Return at once: nothing is ever pending. IndexError if there is no such blob."""
        self._file(index)

    def free(self, index: int) -> None:
        """Free a blob. IndexError if there is none."""
        with self._lock:
            file = self._file(index)
            del self._files[index]  # first: after an interrupt, its descriptor number is not closed again
            file.descriptor.close()

    def __contains__(self, index: int) -> bool:
        return index in self._files

    @property
    def stats(self) -> ToolStats:
        """Counts of transfers and tools, and the resulting wear of the drive. Works on a closed store."""
        with self._lock:
            seconds = time.monotonic() - self._opened
            return ToolStats(
                bytes_written=self._written,
                bytes_read=self._read,
                bytes_used=sum(_blocks(file.nbytes) for file in list(self._files.values())),
                tools=dict(self._tools),
                seconds=seconds,
                drive_nbytes=self._drive.nbytes,
                drive_writes_per_day=self._drive.drive_writes_per_day(self._written, seconds),
                lifetime_days=self._drive.lifetime_days(self._written / seconds if seconds > 0 else 0.0),
            )

    def close(self) -> None:
        """Free the space. May be called twice."""
        with self._lock:
            if self._finalizer.alive:
                _close(self._files)  # after an interrupt, the next call does the rest
                self._finalizer.detach()

    def __enter__(self) -> ToolStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_open(self) -> None:
        if not self._finalizer.alive:
            raise StoreGoneError(f"the tool store of {self.folder} is closed")

    def _file(self, index: int) -> _File:
        self._require_open()
        file = self._files.get(index)
        if file is None:
            raise IndexError(f"index {index} is not in the tool store of {self.folder}")
        return file

    def _create(self, index: int) -> Descriptor:
        try:
            return open_unnamed(self.folder, os.O_RDWR)
        except OSError as error:
            operation = f"making a file for index {index}"
            if error.errno == errno.EMFILE:
                operation += f" beside {len(self._files)} others (each is an open file)"
            raise TransferError(error.errno or errno.EIO, operation, self.folder) from None

    def _plan(self, kind: str, index: int, file: _File) -> TransferPlan:
        # Whether the page cache holds the file follows from the tool that wrote it. As a part of the key it would
        # separate the tools, and WRDic needs all of them in one place: hence resident=False.
        name = f"index {index} of {self.folder}"
        return plan_transfer(kind, name, FORMAT, _HOST, file.nbytes, 1, self._policy, "object", folder=self.folder)

    def _fill(self, index: int, file: _File, address: int, began: float) -> tuple[str, ...]:
        """Have the first tool that can do it write the file; return the tools, that one first."""
        request = WriteRequest(self.folder, file.fd, file.nbytes, [Extent(0, file.nbytes, address, False)], (), False)

        def write(tool: str) -> TransportResult:
            os.ftruncate(file.fd, 0)  # of what a tool wrote before it refused
            allocate(file.fd, file.nbytes)
            return call_transport(tool, request)

        def work(execution: Execution) -> Outcome[tuple[str, ...]]:
            moved = self._move(index, "write", execution, write)
            return Outcome(moved, (execution.tool, *(tool for tool in execution.order if tool != execution.tool)))

        _, tools = execute(self._plan(SAVE, index, file), work, began)
        self._tools[tools[0]] += 1
        return tools

    def _fetch(self, index: int, file: _File, address: int, nbytes: int) -> None:
        began = time.perf_counter()
        # A tool may fill memory up to the end of the page that a span ends in.
        whole = address % _BLOCK == 0 and nbytes % _BLOCK == 0
        span = Span(0, nbytes, address) if whole else None
        request = ReadRequest(self.folder, file.fd, file.nbytes, [Extent(0, nbytes, address, False)], span)

        def work(execution: Execution) -> Outcome[None]:
            moved = self._move(index, "read", execution, lambda tool: call_transport(tool, request))
            return Outcome(moved, None, counts=nbytes == file.nbytes)

        plan = self._plan(LOAD, index, file)
        execute(plan._replace(tools=file.tools[:1]), work, began, tools=file.tools)

    def _move(
        self, index: int, operation: str, execution: Execution, move: Callable[[str], TransportResult]
    ) -> TransportResult:
        """Run the operation; count the notes of the tools, and name the index and the tool in errors."""

        def attempt(tool: str) -> TransportResult:
            with translate_native_errors(self.folder):
                return move(tool)

        try:
            moved = execution.run(attempt)
        except (OSError, CorruptFileError) as error:
            tool = execution.tool
            raise self._with_index(index, f"{tool}: {operation}" if tool else operation, error) from error
        finally:
            for note in execution.failures:
                self._notes[f"{operation}: {note}"] += 1
        for note in moved.notes:
            self._notes[f"{operation}: {execution.tool}: {note}"] += 1
        return moved

    def _with_index(self, index: int, operation: str, error: OSError | CorruptFileError) -> FastIOError:
        """Return the same error with the index, the operation and the tool."""
        if isinstance(error, CorruptFileError):
            return CorruptFileError(self.folder, f"index {index}", f"{operation}: {error.problem}")
        what, offset = f"{operation} of index {index}", None
        if isinstance(error, TransferError):
            what, offset = f"{what} ({error.operation})", error.offset
        return TransferError(error.errno or errno.EIO, what, self.folder, offset)


def _blocks(nbytes: int) -> int:
    return -(-nbytes // _BLOCK) * _BLOCK


def _close(files: dict[int, _File]) -> None:
    while files:
        files.popitem()[1].descriptor.close()
