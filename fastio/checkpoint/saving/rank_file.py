"""Writes a rank's part of a step: a data file of its own, and links to files of the step before.

It reports what the rank has in the step: before its file is written, where that is known.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.storage import WriteResult

from fastio._native import crc32
from fastio.checkpoint.folder.manifest import File
from fastio.checkpoint.ranks.shared_folder import comes_true
from fastio.checkpoint.saving.file_checksum import of_file
from fastio.checkpoint.saving.rank_links import LinkedItems, WrittenPart, find_unchanged, link_files
from fastio.checkpoint.saving.rank_state import RankState
from fastio.checkpoint.saving.step_kinds import RankTask
from fastio.checkpoint.saving.writing import check_file
from fastio.distributed.data_file import DataFile
from fastio.distributed.item_checksums import hashing_blocks, known_blocks, results_of
from fastio.distributed.items import Image, ImageBuilder
from fastio.distributed.stored_items import FORMAT
from fastio.engine.save import write_layout
from fastio.errors import CheckpointError
from fastio.files.open_file import opened
from fastio.results import SaveResult
from fastio.runtime.gc_pause import gc_paused

_APPEARS_SECONDS = 30.0  # within which a folder that another machine made is seen through a network file system


class Report(NamedTuple):
    """What a rank has in a step: its own file, those that it shares with the step before, and what is in them."""

    files: list[File]
    results: list[WriteResult]


class Written(NamedTuple):
    """CRC-32s of a written file's extents, of the blocks of some, and how it was written."""

    values: Sequence[int]
    block_crcs: Mapping[int, bytes]
    result: SaveResult


class RankFile:
    """The file of a rank in the folder ``path``: laid out, but not written yet.

    ``indices`` are the items that the rank has in the step. Those are not in the file that did not change since the
    step in which the rank has ``last``, if that is the task's base: its files are linked into the folder.
    """

    def __init__(
        self, task: RankTask, path: str, rank: int, indices: list[MetadataIndex], last: WrittenPart | None
    ) -> None:
        _wait_for_folder(path)
        state: RankState = task.content
        self._task, self._state = task, state
        with gc_paused():
            self._linked = _linked(task, path, indices, last)
            elsewhere = {result.index for result in self._linked.results}
            self._image = _lay_out(state, [index for index in indices if index not in elsewhere])
        self._crcs = _all_crcs(task, state, self._image)
        self._blocks = None if self._crcs is None else known_blocks(self._image, state.by_tensor(task.block_crcs))
        self._file = DataFile(path, f"__{rank}_")

    @property
    def linked_bytes(self) -> int:
        """The bytes of the items that the rank shares with the step before."""
        return sum(self._state.tensors[result.index.fqn].nbytes for result in self._linked.results)

    def expected(self) -> Report | None:
        """Return what will be in the file; None if that is only known once it is written."""
        crcs, blocks = self._crcs, self._blocks
        if crcs is None or blocks is None:
            return None
        values = [crcs[extent.name] if extent.checksum else 0 for extent in self._image.layout.extents]
        return self._report(values, blocks)

    def write(self) -> Written:
        """Write the file, durably."""
        task, state = self._task, self._state
        crcs = state.by_tensor(task.crcs) if self._crcs is None else self._crcs
        with hashing_blocks(self._image, state.by_tensor(task.block_crcs)) as block_crcs:
            result, values = write_layout(
                self._image.layout, self._file, FORMAT, task.policy, True, task.progress, task.is_snapshot, crcs
            )
        return Written(values, block_crcs, result)

    def checked(self, written: Written, expected: Report | None) -> Report:
        """Check what the disk has of the written file; return what is in it."""
        task, path = self._task, self._file.path
        report = self._report(written.values, written.block_crcs) if expected is None else expected
        with opened(path) as (fd, size):
            check_file(path, fd, size, report.files[0], task.read_back)
        if task.chunk_memory is not None:  # what was written is the live state
            task.chunk_memory.pause.require()
        return report

    def discard(self) -> None:
        """Remove the file."""
        self._file.discard()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _report(self, values: Sequence[int], block_crcs: Mapping[int, bytes]) -> Report:
        layout, name = self._image.layout, self._file.name
        with gc_paused():
            file = File(name, layout.size, of_file(layout, values))
            results = [*results_of(self._image, name, values, block_crcs), *self._linked.results]
            return Report([file, *self._linked.files], results)


def _linked(task: RankTask, path: str, indices: list[MetadataIndex], last: WrittenPart | None) -> LinkedItems:
    """Link the files of unchanged items into the step's folder; nothing is linked if that fails."""
    base = task.base
    if base is None or last is None or last.order != base.manifest.order:
        return LinkedItems()
    found = find_unchanged(last, base.unchanged(), task.content, set(indices))
    return found if link_files(found.files, task.folder.path_of(base.manifest.step), path) else LinkedItems()


def _all_crcs(task: RankTask, state: RankState, image: Image) -> dict[str, int] | None:
    """The CRC-32s of all that a layout asks for, by the names of its extents; None if some are unknown."""
    if not task.is_snapshot:
        return None
    found = state.by_tensor(task.crcs)
    for extent in image.layout.extents:
        if extent.checksum and extent.name not in found:
            if extent.name not in state.objects:
                return None
            found[extent.name] = crc32(state.objects[extent.name])
    return found


def _wait_for_folder(path: str) -> None:
    """Return when a folder is seen that the first rank made. CheckpointError if that takes too long."""
    if not comes_true(lambda: os.path.isdir(path), _APPEARS_SECONDS):
        raise CheckpointError(
            f"{path}: this rank does not see the folder that rank 0 made: all ranks must write to one file system, "
            "as a network file system under the same path"
        )


def _lay_out(state: RankState, indices: list[MetadataIndex]) -> Image:
    builder = ImageBuilder()
    for index in indices:
        name = index.fqn
        if name in state.objects:
            builder.add_bytes(index, memoryview(state.objects[name]))
        else:
            builder.add(index, state.tensor(name))
    return builder.build()
