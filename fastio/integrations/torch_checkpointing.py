"""A storage for torch_checkpointing whose files and folders appear whole, and durable."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from fastio.files.atomic_file import AtomicFile, sync_folder, write_durably
from fastio.files.full_write import write_all
from fastio.files.new_folders import make_folders
from fastio.integrations.missing_library import LibraryMissingError

try:
    from torch_checkpointing.storage.base_storage import StorageConfig
    from torch_checkpointing.storage.filesystem import LocalFileSystemStorage, LocalFileSystemStorageConfig
except ImportError as error:
    raise LibraryMissingError("torch_checkpointing", str(error), "pip install torch-checkpointing") from error


@dataclass
class FastStorageConfig(StorageConfig):
    """The ``storage_config`` of a ``CheckpointManager``: local files, with the names and formats of the library's own.

    Each file appears whole, and survives a power cut before the checkpoint's folder gets its name; so does that. An
    error of a write leaves no file. Reads are the library's own.

    >>> from torch_checkpointing import CheckpointManager
    >>> from fastio.integrations.torch_checkpointing import FastStorageConfig
    >>> manager = CheckpointManager(CheckpointManager.Config(storage_config=FastStorageConfig()))
    """

    def create_storage(self) -> FastStorage:
        """Return the storage."""
        return FastStorage()


class FastStorage(LocalFileSystemStorage):
    """The storage of :class:`FastStorageConfig`. Errors of the system are TransferError (an OSError)."""

    def __init__(self) -> None:
        super().__init__(LocalFileSystemStorageConfig(use_direct_io=False))

    def stream_write(self, path: Path) -> io.IOBase:
        """Return a context to write to; the file is there when it ends without an error."""
        return _NewFile(os.fspath(path))

    def write(self, path: Path, data: Any) -> None:
        """Write a whole file, durably."""
        write_durably(os.fspath(path), bytes(data))

    def mkdir(self, path: Path, recursive: bool = True) -> None:
        """Make a folder, durably."""
        if recursive:
            make_folders(os.fspath(path))
        else:
            super().mkdir(path, recursive)
            sync_folder(os.path.dirname(os.path.abspath(path)))

    def rename(
        self, src_path: Path, dst_path: Path, is_directory: bool = False, background_cleanup: bool = False
    ) -> None:
        """Rename a file or a folder, durably."""
        super().rename(src_path, dst_path, is_directory, background_cleanup)
        sync_folder(os.path.dirname(os.path.abspath(dst_path)))


class _NewFile(io.RawIOBase):
    """A file that is written from its beginning to its end, and committed by the end of the context."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._new = AtomicFile(path)
        self._end = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        write_all(self._path, self._new.fd, view, self._end)
        self._end += view.nbytes
        return view.nbytes

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._new:  # which discards it unless it is committed
            if kind is None:
                self._new.commit(durable=True)
        super().__exit__(kind, error, at)

    def close(self) -> None:
        """Close it; what was not committed is discarded."""
        if not self.closed:
            self._new.__exit__(None, None, None)
        super().close()
