"""Writing a step: its files first, its manifest last."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from fastio import checksums
from fastio.checkpoint import by_torch, manifest
from fastio.checkpoint.folder import StepFolder, name_of
from fastio.checkpoint.manifest import File, Manifest
from fastio.checkpoint.passing import Passage, save_in_pieces
from fastio.errors import CorruptFileError, FastIOError, TransferError
from fastio.formats import pt_save
from fastio.formats.layout import Layout
from fastio.formats.pt_load import open_archive
from fastio.formats.pt_save import Records
from fastio.job import Progress
from fastio.opening import opened
from fastio.outcome import SaveResult
from fastio.replacement import sync_folder
from fastio.saving import save_layout
from fastio.verify import checksum

_FULL, _CHANGES = "state", "changes"
# A step refers to the one before if at least this share of it did not change, ...
_WORTH_A_REFERENCE = 0.5
# ... and what it keeps on the disk is not more than so many times its own size, in so many files.
_MOST_KEPT, _MOST_FILES = 2, 8


class Base(NamedTuple):
    """The last step that was written, and its storages that did not change since, by the names they have there."""

    manifest: Manifest
    unchanged: set[str]


class Written(NamedTuple):
    """A step that is there, and how its own file was written."""

    manifest: Manifest
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

    TransferError (an OSError) where the system refuses: nothing of it is left then.
    """
    path = task.folder.of(task.step)
    try:
        os.makedirs(path, exist_ok=True)
        before = set(os.listdir(path))
    except OSError as error:
        raise TransferError(error.errno or 0, "making the folder of a step", path) from error
    try:
        written = _write(task, path, before)
    except BaseException:
        with contextlib.suppress(OSError):  # what is left is invisible, and cleared by the next writer
            _discard(path, before, task.order)
        raise
    with contextlib.suppress(OSError):  # the same
        _remove_all(path, before - {manifest.NAME, *(file.name for file in written.manifest.files)})
    return written


def _write(task: Task, path: str, before: set[str]) -> Written:
    linked, elsewhere = _link(task, path, before)
    own = [one for one in task.records.storages if one[0] not in elsewhere]
    name = _free_name(_CHANGES if elsewhere else _FULL, before)
    target = os.path.join(path, name)
    if task.image is None:
        layout = pt_save.lay_out(Records(task.records.small, own), pt_save.archive_name(target))
    else:
        layout = by_torch.layout_of(task.image)
    if task.passage is None:
        result, values = save_layout(layout, target, task.policy, task.progress, task.is_snapshot)
    else:
        result, values = save_in_pieces(layout, target, task.policy, task.passage, task.progress)
    file = File(name, layout.size, checksums.of_file(layout, values))
    _check(target, file, layout, values, task.read_back)
    nbytes = sum(size for _, _, size in task.records.storages) if task.image is None else layout.payload
    saved = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    made = Manifest(task.step, task.order, saved, nbytes, (file, *linked), elsewhere, task.metadata)
    try:
        sync_folder(task.folder.path)
    except OSError as error:
        raise TransferError(error.errno or 0, "fsync of the folder", task.folder.path) from error
    manifest.write(path, made)
    return Written(made, result)


def _discard(path: str, before: set[str], order: int) -> None:
    """After an error, remove what was made; but not a step that is there, and only its folder could not be synced."""
    with contextlib.suppress(FastIOError, FileNotFoundError):
        if manifest.read(path).order == order:
            return
    _remove_all(path, set(os.listdir(path)) - before)
    if not before:
        os.rmdir(path)


def _check(path: str, file: File, layout: Layout, values: Sequence[int], read_back: bool) -> None:
    """Compare what the disk has now with what was to be written: the directory of the file, or every byte of it."""
    with opened(path) as (fd, size):
        if size != file.nbytes:
            raise CorruptFileError(path, None, f"has {size} bytes after it was written, expected {file.nbytes}")
        if read_back and checksum(path, fd, size) != file.crc32:
            raise CorruptFileError(path, None, "the disk gives back other bytes than were written to it")
        found = open_archive(path, fd, size).records
    for extent, value in zip(layout.extents, values, strict=True):
        if extent.checksum and found[extent.name][1:] != (extent.offset, extent.nbytes, value):
            raise CorruptFileError(path, extent.name, "the disk gives back another directory than was written to it")


def _link(task: Task, path: str, before: set[str]) -> tuple[list[File], dict[str, tuple[int, str]]]:
    """Have the files with the storages that did not change in this step's folder too, and say where each of them is.

    A hard link is a name as good as the first: a step that is pruned takes nothing from those that link to its files.
    """
    base = task.base
    if base is None:
        return [], {}
    sizes = {name: nbytes for name, _, nbytes in task.records.storages}
    unchanged = [name for name, nbytes in sizes.items() if nbytes and name in base.unchanged]
    places = [base.manifest.elsewhere.get(name, (0, name)) for name in unchanged]
    numbers = sorted({number for number, _ in places})
    kept = sum(base.manifest.files[number].nbytes for number in numbers)
    total = sum(sizes.values())
    shared = sum(sizes[name] for name in unchanged)
    if not shared or shared < _WORTH_A_REFERENCE * total or kept > _MOST_KEPT * total or len(numbers) > _MOST_FILES:
        return [], {}
    files = [base.manifest.files[number] for number in numbers]
    origin = task.folder.of(base.manifest.step)
    linked = []
    try:
        for number, file in zip(numbers, files, strict=True):
            name = file.name if number else f"{name_of(base.manifest.step)}.{base.manifest.order}.{file.name}"
            if name not in before:
                os.link(os.path.join(origin, file.name), os.path.join(path, name))
            linked.append(file._replace(name=name))
    except OSError:  # a filesystem without links, or the step is gone: then this one is written in full
        return [], {}
    order = {number: at for at, number in enumerate(numbers, 1)}
    return linked, {name: (order[number], record) for name, (number, record) in zip(unchanged, places, strict=True)}


def _free_name(stem: str, taken: set[str]) -> str:
    """A name in the step's folder that no file of an earlier step of that number has."""
    number = 0
    while (name := f"{stem}.{number}.pt" if number else f"{stem}.pt") in taken:
        number += 1
    return name


def _remove_all(path: str, names: set[str]) -> None:
    for name in names:
        target = os.path.join(path, name)
        if os.path.isdir(target):
            shutil.rmtree(target)
        else:
            os.unlink(target)
