"""Writes a step: its files first, its manifest last."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fastio.checkpoint import torch_fallback
from fastio.checkpoint.folder import incremental_links, manifest
from fastio.checkpoint.folder.incremental_links import BaseStep
from fastio.checkpoint.folder.manifest import File, Manifest
from fastio.checkpoint.folder.step_folders import StepFolder, is_marked, leftovers, remove_all
from fastio.checkpoint.saving.chunked_save import ChunkMemory, save_in_chunks
from fastio.checkpoint.saving.file_checksum import of_file
from fastio.checkpoint.saving.snapshot import Storage
from fastio.engine.background_job import Progress
from fastio.engine.record_checksums import checksum
from fastio.engine.save import write_layout
from fastio.errors import CorruptFileError, FastIOError, TransferError
from fastio.files.atomic_file import AtomicFile, sync_folder
from fastio.files.open_file import opened
from fastio.formats.detect import PT
from fastio.formats.layout import Layout
from fastio.formats.pt import writer
from fastio.formats.pt.reader import open_archive
from fastio.formats.pt.records import Records
from fastio.results import SaveResult
from fastio.sizes import exact_size

_FULL, _CHANGES = "state", "changes"


class WrittenStep(NamedTuple):
    """The manifest of a written step, how its own files were written, and the bytes that it shares with another."""

    manifest: Manifest
    result: SaveResult
    linked: int


class _OwnFile(NamedTuple):
    """A file that was written for a step, not linked, and how it was written."""

    file: File
    result: SaveResult


class Task(NamedTuple):
    """What to write, and where.

    ``image``: the whole file, instead of records. ``chunk_memory``: the storages are not a snapshot, and are copied to
    this memory in chunks. ``is_snapshot``: the storages are a snapshot, which does not change. ``crcs``: CRC-32s of the
    storages that were computed while they were copied, by name. ``read_back``: read everything back from the disk and
    compare it before the step becomes visible.
    """

    folder: StepFolder
    step: int
    order: int
    records: Records
    image: bytearray | None
    metadata: dict[str, Any]
    base: BaseStep | None
    chunk_memory: ChunkMemory | None
    is_snapshot: bool
    crcs: Mapping[str, int]
    policy: Any
    read_back: bool
    progress: Progress | None

    @property
    def storages(self) -> Sequence[Storage]:
        """The storages of the state."""
        return self.records.storages

    @property
    def nbytes(self) -> int:
        """The bytes of the tensors, or of the whole file if only torch can write it."""
        return sum(nbytes for _, _, nbytes in self.storages) if self.image is None else len(self.image)

    def of_copies(self, copies: Sequence[Storage]) -> Task:
        """Return it with copies of the storages."""
        return self._replace(records=Records(self.records.small, copies), is_snapshot=True)

    def with_crcs(self, crcs: Mapping[str, int], block_crcs: Mapping[str, bytes]) -> Task:
        """Return it with CRC-32s of the copies; its files have none of blocks."""
        return self._replace(crcs=crcs)

    def freeing(self, free: Callable[[], object]) -> Task:
        """Return it as it is: its copy is read until the step is complete."""
        return self


def write_step(task: Task) -> WrittenStep:
    """Write a step, durably and atomically; it replaces a step of the same number.

    TransferError (an OSError) if the system refuses, CheckpointError if something that no Checkpointer wrote is in its
    place: nothing of the step is left then.
    """
    path, before = task.folder.make(task.step)
    try:
        # The manifest's temporary file comes first: it marks the folder as a step's if the writer is killed.
        with AtomicFile(os.path.join(path, manifest.NAME)) as new:
            try:
                written = _write(task, path, before, new)
            except BaseException:
                if before:
                    with contextlib.suppress(OSError):  # leftovers are invisible, and the next writer removes them
                        _discard(path, before, task.order)
                raise
    except BaseException:
        if not before:
            with contextlib.suppress(OSError):  # the next writer removes leftovers
                task.folder.abandon(task.step)
        raise
    with contextlib.suppress(OSError):  # as above
        task.folder.unmark(task.step)
    if manifest.NAME in before or is_marked(before):
        with contextlib.suppress(OSError):  # as above
            named = {file.name for file in written.manifest.files}
            remove_all(path, before & leftovers(path, named))
    return written


def _write(task: Task, path: str, before: set[str], new: AtomicFile) -> WrittenStep:
    storages = task.records.storages
    base = task.base
    own: list[_OwnFile] = []
    early: Collection[str] = ()
    if base is not None and base.changed:
        early = {name for name, _, nbytes in storages if name in base.changed or not nbytes}
        others = {name for name, _, _ in storages if name not in early}
        if incremental_links.find_shared(base.manifest, storages, others).locations:
            own.append(_write_file(task, path, [item for item in storages if item[0] in early], _CHANGES, before))
        else:
            early = ()
    files, elsewhere = _link_unchanged(task, path, before)
    rest = [item for item in storages if item[0] not in early and item[0] not in elsewhere]
    if rest or not own:
        taken = before | {written.file.name for written in own}
        own.append(_write_file(task, path, rest, _CHANGES if own or elsewhere else _FULL, taken))
    locations = {name: (number + len(own), record) for name, (number, record) in elsewhere.items()}
    if len(own) > 1:
        locations |= {name: (1, name) for name, _, _ in rest}
    nbytes = sum(size for _, _, size in storages) if task.image is None else own[0].result.nbytes
    saved = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    all_files = (*(written.file for written in own), *files)
    made = Manifest(task.step, task.order, saved, nbytes, all_files, locations, task.metadata)
    try:
        sync_folder(task.folder.path)
    except OSError as error:
        raise TransferError(error.errno or 0, "fsync of the folder", task.folder.path) from error
    manifest.write(new, made)
    result = _sum([written.result for written in own])
    return WrittenStep(made, result, nbytes - result.nbytes)


def _sum(results: Sequence[SaveResult]) -> SaveResult:
    first = results[0]
    return replace(first, nbytes=sum(r.nbytes for r in results), seconds=sum(r.seconds for r in results))


def _write_file(task: Task, path: str, storages: Sequence[Storage], stem: str, taken: set[str]) -> _OwnFile:
    """Write a file of these storages, durably, and check what the disk has of it."""
    name = _free_name(stem, taken)
    target = os.path.join(path, name)
    if task.image is None:
        layout = writer.lay_out(Records(task.records.small, storages), writer.archive_name(target))
    else:
        layout = torch_fallback.layout_of(task.image)
    if task.chunk_memory is None:
        result, values = save_layout(layout, target, task.policy, task.progress, task.is_snapshot, task.crcs)
    else:
        result, values = save_in_chunks(layout, target, task.policy, task.chunk_memory, task.progress)
    file = File(name, layout.size, of_file(layout, values))
    _check(target, file, layout, values, task.read_back)
    return _OwnFile(file, result)


def save_layout(
    layout: Layout, path: str, policy: Any, progress: Progress | None, still: bool, crcs: Mapping[str, int]
) -> tuple[SaveResult, Sequence[int]]:
    """Write a ``.pt`` file of a layout to a path, durably; return also a CRC-32 for each extent that asks for one."""
    with AtomicFile(path) as new:
        return write_layout(layout, new, PT, policy, True, progress, still, crcs)


def _discard(path: str, before: set[str], order: int) -> None:
    """After an error, remove the files written; but not a visible step whose folder merely could not be synced."""
    with contextlib.suppress(FastIOError, FileNotFoundError):
        if manifest.read(path).order == order:
            return
    remove_all(path, leftovers(path, before))


def check_file(path: str, fd: int, size: int, file: File, read_back: bool) -> None:
    """Compare the file on the disk with what was written: its size, and with ``read_back`` every byte of it."""
    if size != file.nbytes:
        raise CorruptFileError(
            path, None, f"has {exact_size(size)} after it was written, expected {exact_size(file.nbytes)}"
        )
    if read_back and checksum(path, fd, size) != file.crc32:
        raise CorruptFileError(path, None, "the disk returns other bytes than were written to it")


def _check(path: str, file: File, layout: Layout, values: Sequence[int], read_back: bool) -> None:
    """Compare the file on the disk with what was written: its directory, and with ``read_back`` every byte of it."""
    with opened(path) as (fd, size):
        check_file(path, fd, size, file, read_back)
        found = open_archive(path, fd, size).records
    for extent, value in zip(layout.extents, values, strict=True):
        if extent.checksum and found[extent.name][1:4] != (extent.offset, extent.nbytes, value):
            raise CorruptFileError(path, extent.name, "the disk returns another directory than was written to it")


def _link_unchanged(task: Task, path: str, before: set[str]) -> tuple[list[File], dict[str, tuple[int, str]]]:
    """Link the files of unchanged storages into this step's folder; return the files and each storage's location."""
    base = task.base
    if base is None:
        return [], {}
    shared = incremental_links.find_shared(base.manifest, task.records.storages, base.unchanged())
    files = incremental_links.link_files(task.folder, base.manifest, shared, path, before)
    if not files:  # then this step is written in full
        return [], {}
    index_of = {number: index for index, number in enumerate(shared.numbers)}
    return files, {name: (index_of[number], record) for name, (number, record) in shared.locations.items()}


def _free_name(stem: str, taken: set[str]) -> str:
    """Return a file name that is not ``taken``."""
    number = 0
    while (name := f"{stem}.{number}.pt" if number else f"{stem}.pt") in taken:
        number += 1
    return name
