"""Writing a step: its files first, its manifest last."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from fastio.checkpoint import torch_fallback
from fastio.checkpoint.folder import incremental_links, manifest
from fastio.checkpoint.folder.incremental_links import Base
from fastio.checkpoint.folder.manifest import File, Manifest
from fastio.checkpoint.folder.step_folders import StepFolder, is_marked, leftovers, remove_all
from fastio.checkpoint.saving.chunked_save import Passage, save_in_pieces
from fastio.checkpoint.saving.snapshot import Storage
from fastio.engine import checksums
from fastio.engine.background_job import Progress
from fastio.engine.save import save_layout
from fastio.engine.verify import checksum
from fastio.errors import CorruptFileError, FastIOError, TransferError
from fastio.files.atomic_file import AtomicFile, sync_folder
from fastio.files.open_file import opened
from fastio.formats.layout import Layout
from fastio.formats.pt import writer
from fastio.formats.pt.reader import open_archive
from fastio.formats.pt.records import Records
from fastio.results import SaveResult

_FULL, _CHANGES = "state", "changes"


class Written(NamedTuple):
    """A step that is there, and how its own file was written."""

    manifest: Manifest
    result: SaveResult


class _Own(NamedTuple):
    """A file of a step's own, and how it was written."""

    file: File
    result: SaveResult


class Task(NamedTuple):
    """What is to be written, and where.

    ``image``: the whole file, in the place of records. ``passage``: the storages are not a snapshot, and pass through
    memory in pieces. ``is_snapshot``: they are one, which nobody changes. ``read_back``: compare all that
    the disk gives back before the step becomes visible.
    """

    folder: StepFolder
    step: int
    order: int
    records: Records
    image: bytearray | None
    metadata: dict[str, Any]
    base: Base | None
    passage: Passage | None
    is_snapshot: bool
    policy: Any
    read_back: bool
    progress: Progress | None


def write_step(task: Task) -> Written:
    """Write a step, durably. Whatever happens, it is there whole or not at all; a step of that number is replaced then.

    TransferError (an OSError) where the system refuses, CheckpointError where something that no Checkpointer wrote is
    in the way: nothing of the step is left then.
    """
    path, before = task.folder.make(task.step)
    try:
        # First, as it marks the folder as a step's: what a writer that is killed leaves behind is known by it.
        with AtomicFile(os.path.join(path, manifest.NAME)) as new:
            try:
                written = _write(task, path, before, new)
            except BaseException:
                if before:
                    with contextlib.suppress(OSError):  # what is left is invisible, and cleared by the next writer
                        _discard(path, before, task.order)
                raise
    except BaseException:
        if not before:
            with contextlib.suppress(OSError):  # what is left is cleared by the next writer
                task.folder.abandon(task.step)
        raise
    with contextlib.suppress(OSError):  # the same
        task.folder.unmark(task.step)
    if manifest.NAME in before or is_marked(before):
        with contextlib.suppress(OSError):  # the same
            named = {file.name for file in written.manifest.files}
            remove_all(path, before & leftovers(path, named))
    return written


def _write(task: Task, path: str, before: set[str], new: AtomicFile) -> Written:
    storages = task.records.storages
    base = task.base
    own: list[_Own] = []
    early: Collection[str] = ()
    if base is not None and base.changed:
        early = {name for name, _, nbytes in storages if name in base.changed or not nbytes}
        if incremental_links.to(base.manifest, storages, {name for name, _, _ in storages if name not in early}).places:
            own.append(_write_file(task, path, [one for one in storages if one[0] in early], _CHANGES, before))
        else:
            early = ()
    files, elsewhere = _refer(task, path, before)
    rest = [one for one in storages if one[0] not in early and one[0] not in elsewhere]
    if rest or not own:
        taken = before | {one.file.name for one in own}
        own.append(_write_file(task, path, rest, _CHANGES if own or elsewhere else _FULL, taken))
    places = {name: (number + len(own), record) for name, (number, record) in elsewhere.items()}
    if len(own) > 1:
        places |= {name: (1, name) for name, _, _ in rest}
    nbytes = sum(size for _, _, size in storages) if task.image is None else own[0].result.nbytes
    saved = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    kept = (*(one.file for one in own), *files)
    made = Manifest(task.step, task.order, saved, nbytes, kept, places, task.metadata)
    try:
        sync_folder(task.folder.path)
    except OSError as error:
        raise TransferError(error.errno or 0, "fsync of the folder", task.folder.path) from error
    manifest.write(new, made)
    return Written(made, _sum([one.result for one in own]))


def _sum(results: Sequence[SaveResult]) -> SaveResult:
    first = results[0]
    return replace(first, nbytes=sum(one.nbytes for one in results), seconds=sum(one.seconds for one in results))


def _write_file(task: Task, path: str, storages: Sequence[Storage], stem: str, taken: set[str]) -> _Own:
    """Write a file of these storages, durably, and look at what the disk has of it."""
    name = _free_name(stem, taken)
    target = os.path.join(path, name)
    if task.image is None:
        layout = writer.lay_out(Records(task.records.small, storages), writer.archive_name(target))
    else:
        layout = torch_fallback.layout_of(task.image)
    if task.passage is None:
        result, values = save_layout(layout, target, task.policy, task.progress, task.is_snapshot)
    else:
        result, values = save_in_pieces(layout, target, task.policy, task.passage, task.progress)
    file = File(name, layout.size, checksums.of_file(layout, values))
    _check(target, file, layout, values, task.read_back)
    return _Own(file, result)


def _discard(path: str, before: set[str], order: int) -> None:
    """After an error, remove what was made; but not a step that is there, and only its folder could not be synced."""
    with contextlib.suppress(FastIOError, FileNotFoundError):
        if manifest.read(path).order == order:
            return
    remove_all(path, leftovers(path, before))


def _check(path: str, file: File, layout: Layout, values: Sequence[int], read_back: bool) -> None:
    """Compare what the disk has now with what was to be written: the directory of the file, or every byte of it."""
    with opened(path) as (fd, size):
        if size != file.nbytes:
            raise CorruptFileError(path, None, f"has {size} bytes after it was written, expected {file.nbytes}")
        if read_back and checksum(path, fd, size) != file.crc32:
            raise CorruptFileError(path, None, "the disk gives back other bytes than were written to it")
        found = open_archive(path, fd, size).records
    for extent, value in zip(layout.extents, values, strict=True):
        if extent.checksum and found[extent.name][1:4] != (extent.offset, extent.nbytes, value):
            raise CorruptFileError(path, extent.name, "the disk gives back another directory than was written to it")


def _refer(task: Task, path: str, before: set[str]) -> tuple[list[File], dict[str, tuple[int, str]]]:
    """Have the files with the storages that did not change in this step's folder too, and say where each of them is."""
    base = task.base
    if base is None:
        return [], {}
    common = incremental_links.to(base.manifest, task.records.storages, base.unchanged())
    files = incremental_links.linked(task.folder, base.manifest, common, path, before)
    if not files:  # then this step is written in full
        return [], {}
    at = {number: index for index, number in enumerate(common.numbers)}
    return files, {name: (at[number], record) for name, (number, record) in common.places.items()}


def _free_name(stem: str, taken: set[str]) -> str:
    """A name in the step's folder that no file of an earlier step of that number has."""
    number = 0
    while (name := f"{stem}.{number}.pt" if number else f"{stem}.pt") in taken:
        number += 1
    return name
