"""Saves DCP checkpoints: each rank fills one data file with fastio's transports, then the coordinator commits."""

from __future__ import annotations

import dataclasses
import os
import uuid
from typing import Any

from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from fastio.arguments import Path, Policy, Progress
from fastio.distributed import metadata as metadata_file
from fastio.distributed.data_file import DataFile, logger
from fastio.distributed.item_checksums import hashing_blocks, results_of
from fastio.distributed.items import Image, ImageBuilder
from fastio.distributed.rare_gc import RareGC
from fastio.distributed.stored_items import FORMAT
from fastio.engine.save import write_layout
from fastio.engine.tool_selection import check
from fastio.files.new_folders import make_folders, remove_folders
from fastio.progress import check_progress, shown
from fastio.results import SaveResult, publish
from fastio.runtime.gc_pause import gc_paused
from fastio.transports.transport import SAVE
from fastio.volumes.opening import outside_volumes


class Writer(StorageWriter):
    """Save a checkpoint of many ranks into a folder: ``dcp.save(state_dict, storage_writer=Writer(path))``.

    DCP's own FileSystemReader loads what it writes. At any time the folder holds either the complete old checkpoint or
    the complete new one, even if a rank dies. Data files get new names, and ``.metadata``, which makes them a
    checkpoint, is put in place atomically when all of them are written. The replaced files are removed afterwards.

    Args:
        path: the folder, which all ranks see. Made if it is missing.
        policy: chooses the tool, as in :func:`fastio.save`.
        durable: a rank's part is done only when it would survive a power cut.
        progress: True for a progress bar on this rank, or a function of (bytes done, bytes in all).
        overwrite: False raises RuntimeError, as DCP's own writer does, if the folder holds a checkpoint. True replaces
            it without a warning: the old one can be loaded until the new one is complete.

    ``dcp.async_save`` passes a copy of the tensors. But if it has no argument ``async_stager`` (torch 2.6), tensors in
    host memory are saved without a copy, by torch's own writer too: change none before the save is done.

    An error of a rank reaches all ranks as DCP's CheckpointException, whose ``failures`` hold fastio's own errors:
    TransferError (an OSError) if the system refused, ToolUnavailableError for a tool that cannot be used here.
    """

    def __init__(
        self,
        path: Path,
        *,
        policy: Policy = "auto",
        durable: bool = True,
        progress: Progress = None,
        overwrite: bool = True,
    ) -> None:
        super().__init__()
        check(policy, SAVE)
        check_progress(progress)
        self.path = outside_volumes("path", path)
        self.policy = policy
        self.durable = bool(durable)
        self.progress = progress
        self.overwrite = overwrite
        self.save_id = str(uuid.uuid4())
        self._rank: int | None = None
        self._files: list[DataFile] = []
        self._made: list[str] = []  # folders
        self._rare_gc = RareGC()

    def __repr__(self) -> str:
        durable = "durable" if self.durable else "not durable"
        return f"<fastio {type(self).__name__} to {self.path}: policy {self.policy!r}, {durable}>"

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id:
            self.path = outside_volumes("checkpoint_id", checkpoint_id)
        self.save_id = str(uuid.uuid4())
        self._close_files()

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        # Without collectives each rank writes its own metadata.
        self._rank = kwargs.get("rank") if not kwargs.get("use_collectives", True) else None
        self._close_files()
        self._rare_gc.begin()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        self._made = make_folders(self._folder)
        if not self.overwrite and self._exists():
            raise RuntimeError(f"Checkpoint already exists and {self.overwrite=}.")  # DCP's own message
        return plan if self._rank is None else _with_prefix(plan, self._rank)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        metadata_file.remove_leftovers(self.path)
        return [_with_prefix(plan, rank) if self._rank is None else plan for rank, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        done: Future[list[WriteResult]] = Future()
        try:
            done.set_result(self._write(plan, planner) if plan.items else [])
        except BaseException:
            remove_folders(self._made)  # those that no other rank has written into
            raise
        finally:
            self._rare_gc.end()  # here, because DCP calls no further method if another rank fails
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        version = getattr(filesystem, "CURRENT_DCP_VERSION", None)
        if version is not None:  # since torch 2.8
            metadata.version = version
        metadata.storage_data = {result.index: result.storage_data for rank in results for result in rank}
        metadata.storage_meta = self.storage_meta()
        metadata_file.commit(self.path, self._rank, metadata, self.durable)
        self._close_files()

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(checkpoint_id=self.checkpoint_id, save_id=self.save_id)

    @property
    def checkpoint_id(self) -> str:
        """The checkpoint's folder."""
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return filesystem.FileSystemWriter.validate_checkpoint_id(checkpoint_id)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": [], "_rare_gc": RareGC()}

    @property
    def _folder(self) -> str:
        """The folder of the data files."""
        return self.path

    def _exists(self) -> bool:
        """Whether there is a checkpoint that the save replaces."""
        return metadata_file.exists(self.path, self._rank)

    def _write(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        with gc_paused():
            image = _lay_out(plan, planner)
        file = DataFile(self.path, plan.storage_data.prefix)
        try:
            with shown(self.progress, f"saving {file.name}") as on_progress, hashing_blocks(image) as block_crcs:
                result, values = write_layout(image.layout, file, FORMAT, self.policy, self.durable, on_progress)
        except BaseException:
            file.discard()
            raise
        self._files = [
            file
        ]  # its lock marks the save as in progress until the next one begins or the writer is deleted
        tell(result, file.path)
        return results_of(image, file.name, values, block_crcs)

    def _close_files(self) -> None:
        for file in self._files:
            file.close()
        self._files = []
        self._rare_gc.end()


def tell(result: SaveResult, path: str) -> None:
    """Give the result of a data file's save to the recorders, and to the log."""
    publish(result)
    logger.info(
        "saved %d bytes in %.3f s (%.0f MB/s) by %s, %s: %s",
        result.nbytes, result.seconds, result.bandwidth / 1e6, result.tool, result.route, path,
    )  # fmt: skip


def _with_prefix(plan: SavePlan, rank: int) -> SavePlan:
    return dataclasses.replace(plan, storage_data=filesystem._StoragePrefix(f"__{rank}_"))


def _lay_out(plan: SavePlan, planner: SavePlanner) -> Image:
    builder = ImageBuilder()
    for item in plan.items:
        builder.add(item.index, planner.resolve_data(item))
    return builder.build()
