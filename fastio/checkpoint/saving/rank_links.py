"""Finds what of a rank's part did not change since the step before, and links the data files that hold it.

Data files keep their names, which no other save uses, so the entries of DCP's metadata stay as they were.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.storage import WriteResult

from fastio.checkpoint.folder.incremental_links import is_unaltered, is_worthwhile
from fastio.checkpoint.folder.manifest import File
from fastio.checkpoint.saving.rank_state import LocalTensor, RankState
from fastio.checkpoint.saving.step_kinds import RankTask


class WrittenPart(NamedTuple):
    """What a rank has in a step: its views of storages by the names of tensors, its files, and where each item lies."""

    order: int
    views: Mapping[str, LocalTensor]
    files: Sequence[File]
    results: Sequence[WriteResult]


class LinkedItems(NamedTuple):
    """The files that a rank shares with the step before, and where its unchanged items lie, of ``nbytes``."""

    files: Sequence[File] = ()
    results: Sequence[WriteResult] = ()
    nbytes: int = 0


def views_of(state: RankState) -> dict[str, LocalTensor]:
    """Return a rank's views of its storages by the names of tensors, without what other ranks have of these."""
    return {name: local._replace(of=None) for name, local in state.tensors.items()}


def find_unchanged(
    base: WrittenPart, unchanged: Collection[str], state: RankState, items: Collection[MetadataIndex]
) -> LinkedItems:
    """Return what a step shares with ``base``; nothing if that is too little. Pure.

    ``unchanged`` are the storages of the state that have the same bytes as in ``base``, ``items`` what the rank stores.
    """
    views = views_of(state)
    kept = [
        result
        for result in base.results
        if result.index in items and _is_unchanged(views, base.views, result.index.fqn, state, unchanged)
    ]
    names = {result.storage_data.relative_path for result in kept}
    files = [file for file in base.files if file.name in names]
    total = sum(_nbytes(state, index.fqn) for index in items)
    shared = sum(_nbytes(state, result.index.fqn) for result in kept)
    if not is_worthwhile(shared, sum(file.nbytes for file in files), total, len(files)):
        return LinkedItems()
    return LinkedItems(files, kept, shared)


def linked_items(task: RankTask, path: str, indices: Sequence[MetadataIndex], last: WrittenPart | None) -> LinkedItems:
    """Link the files of items that did not change into a step's folder; return nothing if that fails.

    ``last`` is what the rank has in the step that was written last, to which only the step after it links.
    """
    base = task.base
    if base is None or last is None or last.order != base.manifest.order:
        return LinkedItems()
    found = find_unchanged(last, base.unchanged(), task.content, set(indices))
    return found if link_files(found.files, task.folder.path_of(base.manifest.step), path) else LinkedItems()


def link_files(files: Sequence[File], origin: str, path: str) -> bool:
    """Link files of a step's folder ``origin`` into another one; returns whether all are there, else none is."""
    made: list[str] = []
    try:
        for file in files:
            source = os.path.join(origin, file.name)
            if not is_unaltered(source, file):
                break
            os.link(source, target := os.path.join(path, file.name))
            made.append(target)
        else:
            return True
    except OSError:  # a file system without hard links, or the step was removed
        pass
    for target in made:
        with contextlib.suppress(OSError):  # the next writer removes leftovers
            os.unlink(target)
    return False


def _is_unchanged(
    views: Mapping[str, LocalTensor],
    before: Mapping[str, LocalTensor],
    name: str,
    state: RankState,
    unchanged: Collection[str],
) -> bool:
    view = views.get(name)
    if view is None or not view.nbytes or view != before.get(name):
        return False
    return state.storages[view.storage][0] in unchanged


def _nbytes(state: RankState, name: str) -> int:
    """The bytes that a rank stores of a tensor; 0 for an object."""
    return state.tensors[name].nbytes if name in state.tensors else 0
