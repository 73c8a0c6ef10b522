"""Saves checkpoints in safetensors by DCP: each rank fills its files, then the coordinator commits."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from fastio.arguments import Path, Policy, Progress
from fastio.distributed import huggingface_files as files
from fastio.distributed.consolidation import consolidate
from fastio.distributed.data_file import PartFile, remove_parts
from fastio.distributed.huggingface_blocks import KEY, blocks_text
from fastio.distributed.huggingface_commit import Written, commit
from fastio.distributed.huggingface_names import Place, RankNames, check_mapping, check_tensors, named
from fastio.distributed.writer import Writer, tell
from fastio.engine.call_checks import check_flag
from fastio.engine.save import write_layout
from fastio.errors import UnsupportedError
from fastio.files.new_folders import remove_folders
from fastio.formats.detect import SAFETENSORS
from fastio.formats.layout import Layout
from fastio.formats.safetensors.format import layout
from fastio.progress import shown
from fastio.runtime.gc_pause import gc_paused
from fastio.transports import selection
from fastio.transports.transport import SAVE

_SHARDS = "sharded"  # the folder of the parts beside consolidated files, as torch names it
_DCP_VERSION = "1.0"


class HuggingFaceWriter(Writer):
    """Save tensors of many ranks as safetensors: ``dcp.save(state_dict, storage_writer=HuggingFaceWriter(path))``.

    The folder is a model as Hugging Face's: ``model-00001-of-00004.safetensors`` and so on, with
    ``model.safetensors.index.json``, and CRC-32s in the headers. safetensors, transformers, ``fastio.load_model``,
    torch's ``HuggingFaceStorageReader`` and :class:`fastio.distributed.HuggingFaceReader` load it. Each rank writes the
    tensors that DCP has it save. Where ranks hold parts of tensors (FSDP2, DTensor), use ``save_distributed``.

    At any time the folder holds all of the old checkpoint or all of the new one, even if a rank dies: files have other
    names until all of them are written. The old files are removed last, whatever kind of save wrote them.

    Args:
        path: the folder, which all ranks see. Made if it is missing.
        fqn_to_index_mapping: the number of each tensor's file, from 1 on; None for one file a rank.
        save_distributed: each rank writes its parts of tensors into files of its own, with their offsets, as torch's
            ``HuggingFaceStorageWriter`` does: :class:`HuggingFaceReader` and torch's load these, to any ranks. The
            headers also have CRC-32s of blocks, as those of :class:`fastio.distributed.Writer`'s parts.
        enable_consolidation: put these files into the folder ``sharded`` below the path, and then, on the coordinator,
            whole tensors into the path itself, as :func:`fastio.distributed.consolidate` does.
        policy, durable, progress, overwrite: as for :class:`fastio.distributed.Writer`.

    An error of a rank reaches all ranks as DCP's CheckpointException, whose ``failures`` hold fastio's own errors:
    FormatError for what safetensors cannot hold (objects, parts of tensors without ``save_distributed``, tensors that
    share memory), ValueError for a tensor that the mapping lacks, UnsupportedError for a save without collectives,
    otherwise those of :class:`fastio.distributed.Writer`.

    >>> dcp.save(model.state_dict(), storage_writer=HuggingFaceWriter("model"))
    """

    def __init__(
        self,
        path: Path,
        fqn_to_index_mapping: Mapping[str, int] | None = None,
        save_distributed: bool = False,
        enable_consolidation: bool = False,
        *,
        policy: Policy = "auto",
        durable: bool = True,
        progress: Progress = None,
        overwrite: bool = True,
    ) -> None:
        super().__init__(path, policy=policy, durable=durable, progress=progress, overwrite=overwrite)
        check_flag("save_distributed", save_distributed)
        check_flag("enable_consolidation", enable_consolidation)
        if enable_consolidation and not save_distributed:
            raise ValueError("enable_consolidation=True needs save_distributed=True: other tensors are whole already")
        self.fqn_to_index_mapping = check_mapping(fqn_to_index_mapping)
        self.save_distributed = save_distributed
        self.enable_consolidation = enable_consolidation

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise UnsupportedError(
                f"{self.path}: without collectives no rank knows the files of all; save with use_collectives=True, or "
                "by fastio.distributed.Writer"
            )
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        check_tensors(self.path, plan)
        return super().prepare_local_plan(plan)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        try:
            names = named(self.path, plans, self.fqn_to_index_mapping, self.save_distributed)
            remove_parts(self._folder)
        except BaseException:
            remove_folders(self._made)
            raise
        return [replace(plan, storage_data=own) for plan, own in zip(plans, names, strict=True)]

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        written = [result.storage_data for rank in results for result in rank]
        try:
            commit(self._folder, written, self.durable)
        except BaseException:
            remove_folders(self._made)
            raise
        self._close_files()
        if self.enable_consolidation:
            consolidate(self._folder, self.path, self.fqn_to_index_mapping, force=True, policy=self.policy)

    @property
    def _folder(self) -> str:
        return os.path.join(self.path, _SHARDS) if self.enable_consolidation else self.path

    def _exists(self) -> bool:
        return files.exists(self._folder) or files.exists(self.path)

    def _write(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        names: RankNames = plan.storage_data
        with gc_paused():
            images = [self._lay_out(place, items, planner) for place, items in names.places(plan.items).items()]
        results = []
        try:
            for image in images:
                file = PartFile(self._folder, names.prefix)
                self._files.append(file)
                with shown(self.progress, f"saving {image.place.name()}") as on_progress:
                    result, _ = write_layout(image.layout, file, SAFETENSORS, self.policy, self.durable, on_progress)
                tell(result, file.path)
                results += [
                    WriteResult(index, nbytes, Written(index.fqn, file.name, image.place, nbytes))
                    for index, nbytes in image.tensors
                ]
        except BaseException:
            self._close_files()
            raise
        return results

    def _lay_out(self, place: Place, items: Mapping[str, WriteItem], planner: SavePlanner) -> _Image:
        tensors = {name: _movable(planner.resolve_data(item)) for name, item in items.items()}
        metadata = {"format": "pt"}
        if place.shard:
            offsets = {name: {"saved_offsets": list(_begin(item))} for name, item in items.items()}
            metadata |= {files.OFFSETS: json.dumps(offsets), files.VERSION: _DCP_VERSION, KEY: blocks_text(tensors)}
        laid = layout(tensors, os.path.join(self._folder, place.name()), metadata)
        return _Image(place, laid, [(items[name].index, tensor.nbytes) for name, tensor in tensors.items()])


class _Image(NamedTuple):
    """A file to be written, and the tensors in it with their bytes."""

    place: Place
    layout: Layout
    tensors: list[tuple[MetadataIndex, int]]


def _begin(item: WriteItem) -> Sequence[int]:
    assert item.tensor_data is not None  # only objects have none
    return item.tensor_data.chunk.offsets


def _movable(data: Any) -> torch.Tensor:
    """The tensor of a planner's item; in host memory where no transport reads its device's.

    One on the meta device stays there: the layout refuses it, by its name.
    """
    tensor: torch.Tensor = data.detach()
    kind = tensor.device.type
    is_movable = kind in ("cpu", "meta") or selection.able(SAVE, SAFETENSORS, frozenset({kind}), "object")[0]
    return tensor if is_movable else tensor.cpu()
