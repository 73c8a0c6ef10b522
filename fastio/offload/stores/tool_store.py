"""Stores feature maps in separate files, each by the tool that WRDic chooses (Fastensor, sections 4 and 5).

The tool that wrote a file reads it back, and the dictionary learns both times, so that it chooses by their sum; once
there are times of a size, they alone decide (:mod:`fastio.offload.stores.size_times`). The paper's store is
synchronous. Here a few threads do the transfers, and the host waits only in ``wait``.
"""

from __future__ import annotations

import errno
import os
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastio import devices, dicts
from fastio.arguments import Path, Policy
from fastio.engine.tool_selection import plan_transfer
from fastio.errors import ToolUnavailableError, TransferError
from fastio.files.open_file import paths_of
from fastio.offload.stores.background_commands import BackgroundCommands, Command
from fastio.offload.stores.endurance import DriveWear
from fastio.offload.stores.store_errors import StoreGoneError, raisable_copy
from fastio.offload.stores.store_places import missing_place
from fastio.offload.stores.tool_file import FORMAT, Tally, ToolFile, blocks
from fastio.runtime.uncopied import Uncopied
from fastio.transports import registry
from fastio.transports.transport import LOAD, SAVE

__all__ = ["FORMAT", "ToolStats", "ToolStore"]

_CPU = torch.device("cpu")
_THREADS = 2  # transfers at a time: tools have threads of their own


@dataclass(frozen=True, slots=True)
class ToolStats(DriveWear):
    """Counts since the store was opened. Bytes are whole blocks of 4096.

    ``tools`` counts blobs by writer, ``routes`` transfers by what :class:`fastio.Transfer` calls their route.
    """

    bytes_read: int
    bytes_used: int
    tools: dict[str, int]
    routes: dict[str, int]


class ToolStore(Uncopied):
    """Blobs in unnamed files of one or more folders; a :class:`fastio.offload.stores.tiers.Store`, a context manager.

    Several folders take turns. ``policy`` is what :func:`fastio.save` takes: a mode (``"w+r"`` is WRDic, ``"w"`` WDic,
    ``"r"`` RDic), a dictionary or its path, or the name of a tool. Files are not synced, and a tool that uses the page
    cache may leave its data there. Each blob is an open file: ``ulimit -n`` limits their number. Any thread may call
    any method.

    Memory of an accelerator is moved by the tools that reach it (``gds``, ``pinned``, ...), in dictionaries of its own:
    the times have its copies in them.

    Raises FolderMissingError, TransferError, and ValueError for an unknown policy or no folder; after ``close`` and in
    a forked process transfers raise StoreGoneError. ``wait`` and ``is_done`` raise the errors of transfers; a blob
    whose write failed is gone then. If a tool fails, the next one is used, and :attr:`notes` say so.
    """

    takes_devices = True

    def __init__(self, folders: Path | Sequence[Path], policy: Policy = "w+r") -> None:
        self._tally = Tally(_mode(dicts.resolve(policy, SAVE, registry.names())))
        self.folders = tuple(paths_of("folders", folders, "a folder, or a list of them"))
        if not self.folders:
            raise ValueError(f"folders={folders!r}: expected at least one folder")
        self._name = ", ".join(self.folders)
        self._policy = policy
        self._drive_nbytes = sum(_drives(self.folders).values())
        self._opened = time.monotonic()
        self._process = os.getpid()
        self._turn = 0
        self._files: dict[int, ToolFile] = {}
        self._pending: dict[int, Command] = {}  # by index: the latest command, until its end was seen
        self._commands = BackgroundCommands(_THREADS)
        # Reentrant: the garbage collector may free another Offload's blob during this thread's call.
        self._lock = threading.RLock()
        self._finalizer = weakref.finalize(self, _close, self._files, self._commands)

    def __repr__(self) -> str:
        state = f"blobs: {len(self._files)}" if self._finalizer.alive else "closed"
        return f"<fastio ToolStore in {self._name}: policy {self._policy!r}, {state}>"

    def require_device(self, device: torch.device) -> None:
        """Raise ToolUnavailableError if the policy names a tool that cannot write and read memory of a device."""
        try:
            for kind in (SAVE, LOAD):
                plan_transfer(kind, self._name, FORMAT, {device}, 0, 1, self._policy, "object", folder=self.folders[0])
        except ToolUnavailableError as error:
            cure = error.cure or "without policy=, the ToolStore chooses among the tools that can"
            raise ToolUnavailableError(error.tool, error.reason, cure) from None

    @property
    def notes(self) -> tuple[str, ...]:
        """What did not go as planned, and how often."""
        with self._tally.lock:
            notes = list(self._tally.notes.items())
        return tuple(note if count == 1 else f"{note} ({count} times)" for note, count in notes)

    def write(self, index: int, address: int, nbytes: int, device: torch.device = _CPU) -> None:
        """Begin to write a new blob, after the work queued on the device's current stream.

        ValueError if the index is taken.
        """
        fence = _fence(device)
        with self._lock:
            self._require_open()
            if index in self._files:
                raise ValueError(f"index {index} is in the tool store of {self._name} already; free it first")
            folder = self.folders[self._turn % len(self.folders)]
            self._turn += 1
            file = self._files[index] = ToolFile(folder, index, nbytes, self._policy, self._tally)
            self._begin(index, Command(lambda: file.fill(address, device, fence), reads=False))

    def read(self, index: int, address: int, nbytes: int, device: torch.device = _CPU) -> None:
        """Begin to read a blob's first ``nbytes``, after the work queued on the device's current stream.

        Waits for a pending command of the blob, and raises its error. IndexError if there is no such blob, ValueError
        if it is shorter. A failed read may be retried.
        """
        self.wait(index)
        fence = _fence(device)
        with self._lock:
            file = self._file(index)
            if nbytes > file.nbytes:
                raise ValueError(f"cannot read {nbytes} bytes of index {index}, which has {file.nbytes}")
            self._begin(index, Command(lambda: file.fetch(address, nbytes, device, fence), reads=True))

    def update(self) -> int:
        """Return how many commands are pending."""
        self._require_open()
        return sum(not command.ended.is_open for command in list(self._pending.values()))

    def finished(self, indices: Sequence[int]) -> list[int]:
        """Return those of the indices without a pending command; see :class:`fastio.offload.stores.tiers.Store`."""
        self._require_open()
        pending = self._pending
        return [index for index in indices if (command := pending.get(index)) is None or command.ended.is_open]

    def is_done(self, index: int) -> bool:
        """Return whether the blob has no pending command. Raises its error; IndexError if there is no such blob."""
        self._file(index)
        command = self._pending.get(index)
        if command is not None and not command.ended.is_open:
            return False
        self._end(index, command)
        return True

    def wait(self, index: int) -> None:
        """Wait until the blob has no pending command. Raises its error; IndexError if there is no such blob."""
        self._file(index)
        command = self._pending.get(index)
        if command is not None:
            self._commands.wait(command)
        self._end(index, command)

    def free(self, index: int) -> None:
        """Free a blob, after what is being transferred of it. IndexError if there is none."""
        with self._lock:
            self._file(index)
            command = self._pending.get(index)
        if command is not None:
            self._commands.drop(command)
        with self._lock:
            self._pending.pop(index, None)
            file = self._files.pop(index, None)  # first: after an interrupt, its descriptor number is not closed again
            if file is not None:
                file.close()

    def __contains__(self, index: int) -> bool:
        return index in self._files

    @property
    def stats(self) -> ToolStats:
        """Counts of transfers and tools, and the resulting wear of the drive. Works on a closed store."""
        with self._lock, self._tally.lock:
            return ToolStats(
                bytes_written=self._tally.written,
                seconds=time.monotonic() - self._opened,
                drive_nbytes=self._drive_nbytes,
                bytes_read=self._tally.read,
                bytes_used=sum(blocks(file.nbytes) for file in list(self._files.values())),
                tools=dict(self._tally.tools),
                routes=dict(self._tally.routes),
            )

    def close(self) -> None:
        """Drop queued commands, wait for the others and free the space. May be called twice."""
        if self._finalizer.alive and os.getpid() == self._process:
            for index in list(self._files):
                self.free(index)
        with self._lock:
            if self._finalizer.alive:
                _close(self._files, self._commands)  # after an interrupt, the next call does the rest
                self._finalizer.detach()

    def __enter__(self) -> ToolStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, index: int, command: Command) -> None:
        self._commands.start()
        put = self._commands.put
        self._pending[index] = command  # no interrupt comes between this and the next line
        put(command)
        if command.reads:
            self._commands.prefer(command)

    def _end(self, index: int, command: Command | None) -> None:
        """Forget a command that has ended; raise its error."""
        if command is None:
            return
        with self._lock:
            if self._pending.get(index) is command:
                del self._pending[index]
        if command.error is not None:
            if not command.reads and index in self._files:
                self.free(index)
            raise raisable_copy(command.error)

    def _require_open(self) -> None:
        if not self._finalizer.alive:
            raise StoreGoneError(f"the tool store of {self._name} is closed")
        if os.getpid() != self._process:
            raise StoreGoneError(f"the tool store of {self._name} belongs to the process that forked this one")

    def _file(self, index: int) -> ToolFile:
        self._require_open()
        file = self._files.get(index)
        if file is None:
            raise IndexError(f"index {index} is not in the tool store of {self._name}")
        return file


def _mode(policy: dicts.Policy) -> str | None:
    """Return which times judge tools by the sizes of this store, if the policy is a dictionary that learns."""
    dictionary = policy.dictionary
    if policy.tool is not None or (dictionary is not None and not dictionary.learn):
        return None
    if isinstance(dictionary, dicts.WRDic):
        return dictionary.mode
    by_operation = {"save": "w", "load": "r"}
    return by_operation.get(dictionary.op or "", "w+r") if dictionary else policy.mode or "w+r"


def _fence(device: torch.device) -> Any:
    accelerator = devices.find(device)
    if accelerator is None:
        return None
    with devices.copy_errors():
        return accelerator.current_stream(device).record_event()


def _drives(folders: Sequence[str]) -> dict[int, int]:
    """Return the size in bytes of each filesystem below the folders, by its device number."""
    found = {}
    for folder in folders:
        try:
            filesystem = os.statvfs(os.path.join(folder, ""))
            found[os.stat(folder).st_dev] = filesystem.f_blocks * filesystem.f_frsize
        except FileNotFoundError:
            raise missing_place(folder) from None
        except OSError as error:
            raise TransferError(error.errno or errno.EIO, "opening the tool store", folder) from None
    return found


def _close(files: dict[int, ToolFile], commands: BackgroundCommands) -> None:
    commands.close()
    while files:
        files.popitem()[1].close()
