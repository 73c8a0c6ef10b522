"""Copies objects to memory that is kept, and writes them as files on a thread, while training continues."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from fastio import api
from fastio.checkpoint.at_exit import close_at_exit
from fastio.checkpoint.background_write import BackgroundWrite
from fastio.checkpoint.save_handle import SaveFuture
from fastio.checkpoint.saving.snapshot import Snapshot, Storage
from fastio.engine.save import write_layout
from fastio.engine.unpicklable import name_unpicklable
from fastio.files.atomic_file import AtomicFile
from fastio.formats.detect import PT, SAFETENSORS
from fastio.formats.layout import Layout
from fastio.formats.pt import torch_probe, writer
from fastio.formats.pt.records import Records, pickled
from fastio.formats.safetensors.format import layout as lay_out_tensors
from fastio.results import SaveResult, publish

_log = logging.getLogger("fastio.integrations")
_PICKLE_PROTOCOL = 2


class _File(NamedTuple):
    """A file to be written: its tensors' storages, and how it is laid out over copies of them.

    ``crcs``: CRC-32s of its extents that were computed while they were copied, by name.
    """

    path: str
    format: str
    storages: list[Storage]
    lay_out: Callable[[list[Storage]], Layout]
    crcs: Mapping[str, int]


class NewFiles:
    """The files of one job. What is not a tensor is pickled when it is added; storages stay where they are."""

    def __init__(self) -> None:
        self._files: list[_File] = []

    def add_pt(self, obj: Any, path: str) -> None:
        """Add a file as torch.save makes it. Raises what that raises for an object that cannot be pickled."""
        if reason := torch_probe.unsupported_reason():
            _log.info("%s: saved before training continues: %s", path, reason)
            api.save_over_link(obj, path)
            return
        try:
            small, storages, trimmed = pickled(obj, _PICKLE_PROTOCOL)
        except Exception as error:
            name_unpicklable(error, obj, "obj", path, _PICKLE_PROTOCOL, pickle)
            raise

        def lay_out(copies: list[Storage]) -> Layout:
            return writer.lay_out(Records(small, copies, trimmed), writer.archive_name(path))

        self._files.append(_File(path, PT, list(storages), lay_out, {}))

    def add_safetensors(self, tensors: Mapping[str, torch.Tensor], path: str, metadata: dict[str, str] | None) -> None:
        """Add a file of safetensors. FormatError names the entry that the format cannot hold."""
        lay_out_tensors(dict(tensors), path, metadata)  # its errors are the caller's
        by_storage = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors.values()}
        storages = [(str(key), storage, storage.nbytes()) for key, storage in by_storage.items()]
        views = {name: (str(tensor.untyped_storage()._cdata), tensor) for name, tensor in tensors.items()}

        def lay_out(copies: list[Storage]) -> Layout:
            of = {name: storage for name, storage, _ in copies}
            return lay_out_tensors({name: _view(of[key], one) for name, (key, one) in views.items()}, path, metadata)

        self._files.append(_File(path, SAFETENSORS, storages, lay_out, {}))

    def copy(self, snapshot: Snapshot) -> int:
        """Copy all storages to a snapshot's memory; returns their bytes. The files are of the copies then."""
        storages = [
            (f"{number}/{name}", storage, nbytes)
            for number, file in enumerate(self._files)
            for name, storage, nbytes in file.storages
        ]
        copies = snapshot.allocate(storages)
        snapshot.take(storages, lambda _: None)
        left = iter(copies)
        self._files = [
            file._replace(
                storages=[(name, next(left)[1], nbytes) for name, _, nbytes in file.storages],
                # A storage is an extent in a .pt file only: one of safetensors has tensors, which may be parts of it.
                crcs=_of_file(number, file, snapshot.crcs) if file.format == PT else {},
            )
            for number, file in enumerate(self._files)
        ]
        return sum(nbytes for _, _, nbytes in storages)

    def write(self) -> None:
        """Write each file, durably and in one step. A symbolic link at its path is replaced."""
        for file in self._files:
            publish(_written(file))


class BackgroundFiles:
    """Writes one job of files at a time, on a thread.

    The memory of the copies is kept until :meth:`close`. An error is raised by the next :meth:`start`, :meth:`wait` or
    :meth:`close`, once; at the end of the program if none of them is called.
    """

    def __init__(self) -> None:
        self._snapshot = Snapshot(comparable=False)
        self._write: BackgroundWrite | None = None
        close_at_exit(self)

    def start(self, files: NewFiles, end: Callable[[bool], object] = lambda written: None) -> None:
        """Copy what the files need, and write them behind; after the job before, whose error is raised.

        ``end`` is called on the thread: whether all files were written. Its error is the job's, too.
        """
        self.wait()
        nbytes = files.copy(self._snapshot)

        def work() -> SaveResult | None:
            try:
                files.write()
            except BaseException:
                end(False)
                raise
            end(True)
            return None

        write = BackgroundWrite(work, lambda: None, lambda _: None, SaveFuture(), nbytes)
        self._write = write
        try:
            write.start()
        except BaseException:
            if not write.has_begun:
                self._write = None
            raise

    @property
    def is_busy(self) -> bool:
        """Whether a job was started, and nobody has waited for its end."""
        return self._write is not None

    def wait(self) -> None:
        """Return when all is written; raise the error of what was not."""
        write = self._write
        if write is None:
            return
        write.join()
        self._write = None
        write.raise_error()

    def close(self) -> None:
        """As :meth:`wait`, and free the memory; what is started later takes new memory."""
        try:
            self.wait()
        finally:
            if self._write is None:
                self._snapshot.close()


def _written(file: _File) -> SaveResult:
    with AtomicFile(file.path, follow_link=False) as new:
        layout = file.lay_out(file.storages)
        result, _ = write_layout(layout, new, file.format, "auto", True, None, still=True, crcs=file.crcs)
    return result


def _of_file(number: int, file: _File, crcs: Mapping[str, int]) -> dict[str, int]:
    keys = {name: f"{number}/{name}" for name, _, _ in file.storages}
    return {name: crcs[key] for name, key in keys.items() if key in crcs}


def _view(storage: torch.UntypedStorage, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's elements in a copy of its storage, in host memory."""
    view = torch.empty(0, dtype=tensor.dtype)
    return view.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
