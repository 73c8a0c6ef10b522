"""Writes a rank's part of a step: a data file of its own, and links to those of the step before."""

from __future__ import annotations

from typing import NamedTuple

from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.storage import WriteResult

from fastio.checkpoint.folder.manifest import File
from fastio.checkpoint.saving.file_checksum import of_file
from fastio.checkpoint.saving.rank_links import LinkedItems, WrittenPart, find_unchanged, link_files, views_of
from fastio.checkpoint.saving.rank_state import RankState
from fastio.checkpoint.saving.step_kinds import RankTask
from fastio.checkpoint.saving.writing import check_file
from fastio.distributed.data_file import DataFile
from fastio.distributed.item_checksums import hashing_blocks, results_of
from fastio.distributed.items import Image, ImageBuilder
from fastio.distributed.stored_items import FORMAT
from fastio.engine.save import write_layout
from fastio.files.open_file import opened
from fastio.results import SaveResult
from fastio.runtime.gc_pause import gc_paused


class Report(NamedTuple):
    """What a rank has in a step, durably, and how long it wrote."""

    files: list[File]
    results: list[WriteResult]
    seconds: float


class PartWriter:
    """Writes a rank's data files, one after the other; ``last`` is what it has in the step that was written last."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.last: WrittenPart | None = None
        self.linked_bytes = 0
        self._file: DataFile | None = None

    def write(self, task: RankTask, indices: list[MetadataIndex], path: str) -> tuple[Report, SaveResult]:
        """Write a part of a step, durably, into its folder ``path``, and check what the disk has of it."""
        state: RankState = task.content
        self.linked_bytes = 0
        with gc_paused():
            linked = self._linked(task, indices, path)
            elsewhere = {result.index for result in linked.results}
            image = _lay_out(state, [index for index in indices if index not in elsewhere])
        self._file = file = DataFile(path, f"__{self.rank}_")
        with hashing_blocks(image, state.by_tensor(task.block_crcs)) as block_crcs:
            result, values = write_layout(
                image.layout, file, FORMAT, task.policy, True, task.progress, task.is_snapshot,
                state.by_tensor(task.crcs),
            )  # fmt: skip
        written = File(file.name, image.layout.size, of_file(image.layout, values))
        with opened(file.path) as (fd, size):
            check_file(file.path, fd, size, written, task.read_back)
        if task.chunk_memory is not None:  # what was written is the live state
            task.chunk_memory.pause.require()
        results = [*results_of(image, file.name, values, block_crcs), *linked.results]
        return Report([written, *linked.files], results, result.seconds), result

    def note(self, order: int, state: RankState, report: Report) -> None:
        """Note what this rank has in a step, for the next one."""
        self.last = WrittenPart(order, views_of(state), report.files, report.results)

    def discard(self) -> None:
        """Remove the file after an error."""
        if self._file is not None:
            self._file.discard()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _linked(self, task: RankTask, indices: list[MetadataIndex], path: str) -> LinkedItems:
        """Link the files of unchanged items into the step's folder; nothing is linked if that fails."""
        state: RankState = task.content
        base, last = task.base, self.last
        if base is None or last is None or last.order != base.manifest.order:
            return LinkedItems()
        found = find_unchanged(last, base.unchanged(), state, set(indices))
        if not link_files(found.files, task.folder.path_of(base.manifest.step), path):
            return LinkedItems()
        self.linked_bytes = sum(state.tensors[result.index.fqn].nbytes for result in found.results)
        return found


def _lay_out(state: RankState, indices: list[MetadataIndex]) -> Image:
    builder = ImageBuilder()
    for index in indices:
        name = index.fqn
        if name in state.objects:
            builder.add_bytes(index, memoryview(state.objects[name]))
        else:
            builder.add(index, state.tensor(name))
    return builder.build()
