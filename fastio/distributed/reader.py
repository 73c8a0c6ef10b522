"""DCP's storage for loading: each rank reads what it needs, straight into its tensors where that can be."""

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

from fastio.distributed import metadata as metadata_file
from fastio.distributed.load_file import Filling
from fastio.errors import CheckpointError, CorruptFileError, FastIOError, TransferError, quoted
from fastio.files.open_file import opened_in_folder


class Reader(StorageReader):
    """Load a checkpoint of many ranks from a folder: ``dcp.load(state_dict, storage_reader=Reader(path))``.

    It loads what :class:`fastio.distributed.Writer` and DCP's own FileSystemWriter wrote, by any number of ranks into
    any number of ranks. A stored tensor that is wanted whole is read straight into the tensor of ``state_dict``.

    Metadata may name DCP's own classes, and those that ``torch.serialization.add_safe_globals`` has been given; data
    files lie in the folder itself, as regular files. Objects other than tensors are unpickled by DCP's planner, whose
    default does so without restriction: load them only from those whom you trust.

    Where ranks have become more or fewer, one may want a part of what another stored. A CRC-32 is of all that one rank
    stored of a tensor, so with ``verify`` all of that is read; without it, or where the file has no CRC-32, only the
    part, or of a part that is not in one piece, from its first byte to its last.

    Args:
        path: the folder.
        policy: who chooses the tool, as in :func:`fastio.load`.
        verify: compare all that is read with its CRC-32. When an error is raised, tensors of ``state_dict`` may have
            been filled already.
        progress: True for a progress bar on the ranks that ask for it, or a function of (bytes done, bytes in all).

    Errors of a rank reach all of them as DCP's CheckpointException, whose ``failures`` hold fastio's own:
    CheckpointError where the folder holds no checkpoint, CorruptFileError with the file and the tensor that is damaged,
    TransferError (an OSError) where the system refused, UnsupportedError for items that other storage wrote.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, policy: Any = "auto", verify: bool = True, progress: Any = None
    ) -> None:
        super().__init__()
        self.path = os.fspath(path)
        self.policy = policy
        self.verify = verify
        self.progress = progress
        self.load_id = str(uuid.uuid4())
        self._infos: dict[Any, Any] = {}
        self._absent: FastIOError | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id:
            self.path = os.fspath(checkpoint_id)
        self._infos = {}
        self._absent = None
        self.load_id = str(uuid.uuid4())

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        rank = kwargs.get("rank")
        # DCP asks for a rank's own metadata where that of the whole could not be read, and makes one nameless error of
        # both. The first one is raised by what it calls next. What is damaged is so, whatever older lies beside it.
        nothing = Metadata({}, storage_meta=StorageMeta())
        if rank is not None and isinstance(self._absent, CorruptFileError | TransferError):
            return nothing
        try:
            metadata = metadata_file.read(self.path, rank)
        except FastIOError as error:
            if rank is None or self._absent is None:
                self._absent = error
                raise
            return nothing
        self._absent = None
        meta = getattr(metadata, "storage_meta", None) or StorageMeta()
        meta.load_id = self.load_id
        metadata.storage_meta = meta
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._absent is not None:
            raise self._absent
        self._infos = metadata.storage_data

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_file: dict[Any, list[ReadItem]] = {}
        for item in plan.items:
            by_file.setdefault(getattr(self._info(item), "relative_path", None), []).append(item)
        for name, items in by_file.items():
            path = os.path.join(self.path, self._checked(name, items))
            with contextlib.ExitStack() as stack:
                try:
                    fd, size = stack.enter_context(opened_in_folder(path))
                except FileNotFoundError:
                    raise _gone(path, items) from None
                except OSError as error:
                    raise TransferError(error.errno or 0, "open", path) from error
                filling = Filling(path, fd, size, self.policy, self.verify, self.progress)
                for item in items:
                    filling.add(item, self._info(item))
                filling.run(planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @property
    def checkpoint_id(self) -> str:
        """The folder."""
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return filesystem.FileSystemReader.validate_checkpoint_id(checkpoint_id)

    def _info(self, item: ReadItem) -> Any:
        info = self._infos.get(item.storage_index)
        if info is None:
            raise CorruptFileError(
                metadata_file.path_of(self.path), item.storage_index.fqn, "it does not say where this is stored"
            )
        return info

    def _checked(self, name: Any, items: list[ReadItem]) -> str:
        """The name of a data file, which leads to no other folder."""
        if isinstance(name, str) and os.path.basename(name) == name and name not in ("", os.curdir, os.pardir):
            return str(name)
        raise CorruptFileError(
            metadata_file.path_of(self.path), items[0].storage_index.fqn,
            f"it is said to lie in {name!r}, expected the name of a file in the folder: the metadata was altered",
        )  # fmt: skip


def _gone(path: str, items: list[ReadItem]) -> CheckpointError:
    names = sorted({item.storage_index.fqn for item in items})
    return CheckpointError(
        f"{path}: there is no such file, but {len(names)} entries of the checkpoint lie in it, {quoted(names[0])} the "
        "first: it was removed, or it is on a disk that this rank does not see, or another save replaced the "
        "checkpoint while it was loaded; load again, or another checkpoint"
    )
