"""What a step has in common with the one before: its files, by hard links, and where in them each storage is.

A hard link is a name as good as the first: a step that is pruned takes nothing from those that link to its files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from fastio.checkpoint.folder.manifest import File, Manifest
from fastio.checkpoint.folder.regular_file import is_regular
from fastio.checkpoint.folder.step_folders import StepFolder, name_of
from fastio.checkpoint.saving.snapshot import Storage

# A step refers to the one before if at least this share of it did not change, ...
_WORTH_A_REFERENCE = 0.5
# ... and what it keeps on the disk is not more than so many times its own size, in so many files.
_MOST_KEPT, _MOST_FILES = 2, 8
_PREFIX = "step-"  # of the names of files that are linked to, and never of a step's own

_Place = tuple[int, str]
"""The number of a file, and the name of a record in it."""


class Base(NamedTuple):
    """The last step that was written, and what is known of the new one's storages, by the names they have in both.

    ``unchanged`` gives those that did not change since, when all have been looked at. ``changed`` are some that did,
    and may be written before that.
    """

    manifest: Manifest
    unchanged: Callable[[], set[str]]
    changed: frozenset[str] = frozenset()


class References(NamedTuple):
    """Files of another step, by their numbers in it; and for storages, where each of them is."""

    numbers: Sequence[int]
    places: dict[str, _Place]


NONE = References((), {})


def to(base: Manifest, storages: Sequence[Storage], unchanged: Collection[str]) -> References:
    """What a step of these storages has in common with another one; nothing, if that is not worth a reference. Pure."""
    sizes = {name: nbytes for name, _, nbytes in storages}
    places = {
        name: base.elsewhere.get(name, (0, name)) for name, nbytes in sizes.items() if nbytes and name in unchanged
    }
    numbers = sorted({number for number, _ in places.values()})
    kept = sum(base.files[number].nbytes for number in numbers)
    total = sum(sizes.values())
    shared = sum(sizes[name] for name in places)
    if not shared or shared < _WORTH_A_REFERENCE * total or kept > _MOST_KEPT * total or len(numbers) > _MOST_FILES:
        return NONE
    return References(numbers, places)


def linked(folder: StepFolder, base: Manifest, common: References, path: str, before: set[str]) -> list[File] | None:
    """Have these files of another step in the folder ``path`` too, where there are ``before``; None if that fails."""
    origin = folder.of(base.step)
    files = []
    try:
        for number in common.numbers:
            file = base.files[number]
            # Those that it links to itself have the name of their step already.
            own = file.name.startswith(_PREFIX)
            name = file.name if own else f"{name_of(base.step)}.{base.order}.{file.name}"
            source = os.path.join(origin, file.name)
            if not is_regular(source) or os.stat(source).st_size != file.nbytes:
                return None  # it is not what was written any more
            if name not in before:
                os.link(source, os.path.join(path, name))
            files.append(file._replace(name=name))
    except OSError:  # a filesystem without links, or the step is gone
        return None
    return files
