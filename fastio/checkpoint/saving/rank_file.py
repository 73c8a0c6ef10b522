"""Writes a rank's data file of a step, and reports what the rank has there: before it is written, where it is known."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch.distributed.checkpoint.storage import WriteResult

from fastio._native import crc32
from fastio.checkpoint.folder.manifest import File
from fastio.checkpoint.ranks.shared_folder import comes_true
from fastio.checkpoint.saving.file_checksum import of_file
from fastio.checkpoint.saving.rank_links import LinkedItems
from fastio.checkpoint.saving.rank_state import RankState
from fastio.checkpoint.saving.step_kinds import RankTask
from fastio.checkpoint.saving.writing import check_file
from fastio.distributed.data_file import DataFile
from fastio.distributed.item_checksums import hashing_blocks, known_blocks, results_of
from fastio.distributed.items import Image
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
    """The file of a rank in the folder ``path``: laid out, but not written yet. ``linked`` is what it has beside it."""

    def __init__(self, task: RankTask, path: str, rank: int, image: Image, linked: LinkedItems) -> None:
        state: RankState = task.content
        self._task, self._image, self._linked = task, image, linked
        self._known, self._known_blocks = state.by_tensor(task.crcs), state.by_tensor(task.block_crcs)
        self._crcs = _all_crcs(image, self._known, state.objects) if task.is_snapshot else None
        self._blocks = None if self._crcs is None else known_blocks(image, self._known_blocks)
        self._file = DataFile(path, f"__{rank}_")

    def expected(self) -> Report | None:
        """Return what will be in the file; None if that is only known once it is written."""
        crcs, blocks = self._crcs, self._blocks
        if crcs is None or blocks is None:
            return None
        values = [crcs[extent.name] if extent.checksum else 0 for extent in self._image.layout.extents]
        return self._report(values, blocks)

    def write(self) -> Written:
        """Write the file, durably."""
        task = self._task
        crcs = self._known if self._crcs is None else self._crcs
        with hashing_blocks(self._image, self._known_blocks) as block_crcs:
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


def _all_crcs(image: Image, known: Mapping[str, int], objects: Mapping[str, bytearray]) -> dict[str, int] | None:
    """The CRC-32s of all that a layout asks for, by the names of its extents; None if some are unknown."""
    found = dict(known)
    for extent in image.layout.extents:
        if extent.checksum and extent.name not in found:
            if extent.name not in objects:
                return None
            found[extent.name] = crc32(objects[extent.name])
    return found


def wait_for_folder(path: str) -> None:
    """Return when a folder is seen that the first rank made. CheckpointError if that takes too long."""
    if not comes_true(lambda: os.path.isdir(path), _APPEARS_SECONDS):
        raise CheckpointError(
            f"{path}: this rank does not see the folder that rank 0 made: all ranks must write to one file system, "
            "as a network file system under the same path"
        )
