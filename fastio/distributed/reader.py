"""Loads DCP checkpoints: each rank reads the bytes it needs, straight into its tensors if possible."""

from __future__ import annotations

import contextlib
import os
import uuid
from typing import Any

from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from fastio.arguments import Path, Policy, Progress
from fastio.distributed import metadata as metadata_file
from fastio.distributed.items_by_file import items_by_file
from fastio.distributed.load_file import FileLoad
from fastio.distributed.rare_gc import RareGC
from fastio.distributed.stored_items import FORMAT
from fastio.engine.call_checks import check_flag
from fastio.engine.tool_selection import check
from fastio.errors import CheckpointError, CorruptFileError, FastIOError, TransferError, quoted
from fastio.files.open_file import opened_in_folder
from fastio.progress import check_progress
from fastio.transports.transport import LOAD
from fastio.volumes.opening import outside_volumes


class Reader(StorageReader):
    """Load a checkpoint of many ranks from a folder: ``dcp.load(state_dict, storage_reader=Reader(path))``.

    It loads what :class:`fastio.distributed.Writer` and DCP's own FileSystemWriter wrote. The number of ranks may
    differ from that of the save. A stored tensor that is loaded whole is read straight into the tensor of
    ``state_dict``.

    Metadata may name DCP's own classes and those given to ``torch.serialization.add_safe_globals``; data files must be
    regular files in the folder itself. DCP's planner unpickles objects other than tensors, by default without
    restriction: load them only from authors you trust.

    If the number of ranks changed, a rank may need a part of what another rank stored. Only that is read, from its
    first byte to its last; with ``verify`` also the rest of the blocks at its ends: fastio keeps CRC-32s of blocks of
    64 KiB to 4 MiB, of at most a 32nd of a large tensor. Where the file has one CRC-32 for everything that a rank
    stored of a tensor, as those of torch and of fastio 0.1 do, all of that is read with ``verify``.

    Args:
        path: the folder.
        policy: chooses the tool, as in :func:`fastio.load`.
        verify: compare all bytes read with their CRC-32. When an error is raised, tensors of ``state_dict`` may have
            been filled already.
        progress: True for a progress bar on this rank, or a function of (bytes done, bytes in all).

    An error of a rank reaches all ranks as DCP's CheckpointException, whose ``failures`` hold fastio's own errors:
    CheckpointError if the folder holds no checkpoint, CorruptFileError with the file and the tensor that is damaged,
    TransferError (an OSError) if the system refused, UnsupportedError for items that other storage wrote.
    """

    _format = FORMAT

    def __init__(self, path: Path, *, policy: Policy = "auto", verify: bool = True, progress: Progress = None) -> None:
        super().__init__()
        check(policy, LOAD)
        check_flag("verify", verify)
        check_progress(progress)
        self.path = outside_volumes("path", path)
        self.policy = policy
        self.verify = verify
        self.progress = progress
        self.load_id = str(uuid.uuid4())
        self._infos: dict[Any, Any] = {}
        self._metadata_error: FastIOError | None = None
        self._rare_gc = RareGC()

    def __repr__(self) -> str:
        verifies = "verifies" if self.verify else "does not verify"
        return f"<fastio {type(self).__name__} of {self.path}: policy {self.policy!r}, {verifies}>"

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id:
            self.path = outside_volumes("checkpoint_id", checkpoint_id)
        self._infos = {}
        self._metadata_error = None
        self.load_id = str(uuid.uuid4())

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        rank = kwargs.get("rank")
        # If the checkpoint's metadata cannot be read, DCP reads a rank's own, and merges both errors into one without
        # their messages. So the first error is kept, and raised by set_up_storage_reader, which DCP calls next. Damaged
        # metadata stays an error even if older metadata of a rank lies beside it.
        empty = Metadata({}, storage_meta=StorageMeta())
        if rank is not None and isinstance(self._metadata_error, CorruptFileError | TransferError):
            return empty
        try:
            metadata = self._metadata(rank)
        except FastIOError as error:
            if rank is None or self._metadata_error is None:
                self._metadata_error = error
                raise
            return empty
        self._metadata_error = None
        meta = getattr(metadata, "storage_meta", None) or StorageMeta()
        meta.load_id = self.load_id
        metadata.storage_meta = meta
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._metadata_error is not None:
            raise self._metadata_error
        self._infos = metadata.storage_data
        self._rare_gc.begin()

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        try:
            for name, items in items_by_file(self.path, plan.items, self._infos).items():
                with contextlib.ExitStack() as stack:
                    path, fd, size = open_data_file(self.path, name, items, stack)
                    load = FileLoad(path, fd, size, self.policy, self.verify, self.progress, self._format)
                    for item in items:
                        load.add(item, self._infos[item.storage_index])
                    load.run(planner)
        finally:
            self._rare_gc.end()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @property
    def checkpoint_id(self) -> str:
        """The checkpoint's folder."""
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return filesystem.FileSystemReader.validate_checkpoint_id(checkpoint_id)

    def _metadata(self, rank: int | None) -> Metadata:
        """Read the checkpoint's metadata, or with ``rank`` those that a rank saved without collectives."""
        return metadata_file.read(self.path, rank)


def open_data_file(folder: str, name: Any, items: list[ReadItem], stack: contextlib.ExitStack) -> tuple[str, int, int]:
    """Open the data file of a checkpoint's folder that holds ``items``; return its path, descriptor and size.

    ``stack`` closes it. CorruptFileError if the name leads to another folder, CheckpointError if the file is missing,
    TransferError if the system refuses.
    """
    if not isinstance(name, str) or os.path.basename(name) != name or name in ("", os.curdir, os.pardir):
        raise CorruptFileError(
            metadata_file.path_of(folder), items[0].storage_index.fqn,
            f"it is said to lie in {name!r}, expected the name of a file in the folder: the metadata was altered",
        )  # fmt: skip
    path = os.path.join(folder, name)
    try:
        fd, size = stack.enter_context(opened_in_folder(path))
    except FileNotFoundError:
        raise _missing_file(path, items) from None
    except OSError as error:
        raise TransferError(error.errno or 0, "open", path) from error
    return path, fd, size


def _missing_file(path: str, items: list[ReadItem]) -> CheckpointError:
    names = sorted({item.storage_index.fqn for item in items})
    return CheckpointError(
        f"{path}: there is no such file, but {len(names)} entries of the checkpoint lie in it, {quoted(names[0])} the "
        "first: it was removed, or it is on a disk that this rank does not see, or another save replaced the "
        "checkpoint while it was loaded; load again, or another checkpoint"
    )
