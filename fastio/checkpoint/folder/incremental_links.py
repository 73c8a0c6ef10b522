"""Finds the files that a step can share with the step before, and links them into its folder.

Hard links are equal names: pruning a step does not affect the steps that link to its files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from fastio.checkpoint.folder.manifest import File, Manifest
from fastio.checkpoint.folder.regular_file import is_regular
from fastio.checkpoint.folder.step_folders import StepFolder, name_of
from fastio.checkpoint.saving.snapshot import Storage

# A step links to files of the step before if at least this share of its bytes did not change, ...
_LEAST_SHARED = 0.5
# ... and if the linked files have at most this many times its own size, and are at most this many.
_MOST_KEPT, _MOST_FILES = 2, 8
_PREFIX = "step-"  # starts the names of linked files, and never of a step's own files

_RecordLocation = tuple[int, str]
"""The number of a file, and the name of a record in it."""


class BaseStep(NamedTuple):
    """The last step that was written, and which storages of the new step, by name, changed since.

    ``unchanged`` waits until all have been compared, and returns those that did not change. ``changed`` are storages
    known to have changed, which may be written earlier.
    """

    manifest: Manifest
    unchanged: Callable[[], set[str]]
    changed: frozenset[str] = frozenset()


class SharedFiles(NamedTuple):
    """The numbers of another step's files, and the location of each storage in them."""

    numbers: Sequence[int]
    locations: dict[str, _RecordLocation]


NONE = SharedFiles((), {})


def find_shared(base: Manifest, storages: Sequence[Storage], unchanged: Collection[str]) -> SharedFiles:
    """Return the files that a step of these storages shares with ``base``; none if too little is shared. Pure."""
    sizes = {name: nbytes for name, _, nbytes in storages}
    locations = {
        name: base.elsewhere.get(name, (0, name)) for name, nbytes in sizes.items() if nbytes and name in unchanged
    }
    numbers = sorted({number for number, _ in locations.values()})
    kept = sum(base.files[number].nbytes for number in numbers)
    total = sum(sizes.values())
    shared = sum(sizes[name] for name in locations)
    if not is_worthwhile(shared, kept, total, len(numbers)):
        return NONE
    return SharedFiles(numbers, locations)


def is_worthwhile(shared: int, kept: int, total: int, count: int) -> bool:
    """Return whether a step of ``total`` bytes links to ``count`` files of ``kept`` bytes, of which it shares some."""
    return 0 < shared >= _LEAST_SHARED * total and kept <= _MOST_KEPT * total and count <= _MOST_FILES


def link_files(
    folder: StepFolder, base: Manifest, shared: SharedFiles, path: str, before: set[str]
) -> list[File] | None:
    """Link files of another step into the folder ``path``, which has the names ``before``; None if that fails."""
    origin = folder.path_of(base.step)
    files = []
    try:
        for number in shared.numbers:
            file = base.files[number]
            # A file that the base links to is already named after its step.
            is_link = file.name.startswith(_PREFIX)
            name = file.name if is_link else f"{name_of(base.step)}.{base.order}.{file.name}"
            source = os.path.join(origin, file.name)
            if not is_unaltered(source, file):
                return None
            if name not in before:
                os.link(source, os.path.join(path, name))
            files.append(file._replace(name=name))
    except OSError:  # a file system without hard links, or the step was removed
        return None
    return files


def is_unaltered(path: str, file: File) -> bool:
    """Whether a data file of a step was neither replaced nor cut, by its kind and its size. Raises OSError."""
    return is_regular(path) and os.stat(path).st_size == file.nbytes
