"""Replaces the model in a folder by another one, so that the folder holds all of one of them at any moment.

The index names the files, and is replaced in one step; so the files of a model need not. Where a new file has the name
of an old one, the old one gets a second name first, and the old index names that meanwhile. A filesystem without hard
links has no index meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from fastio.errors import CorruptFileError
from fastio.files.atomic_file import AtomicFile, sync_folder, write_durably
from fastio.files.open_file import opened
from fastio.files.temporary_file import clear_leftovers
from fastio.formats.safetensors import sidecar
from fastio.formats.small_reads import read_at
from fastio.models.locate import read_index
from fastio.models.module_saving import remove_files, remove_new_files
from fastio.models.shards import INDEX_NAME, SINGLE_NAME, is_model_file

_LARGEST_COUNT = 99_999


@contextlib.contextmanager
def replacing_model(folder: str, names: set[str], index: bytes | None) -> Iterator[None]:
    """Inside, the caller renames the files of a new model to ``names``, durably. Then they are the folder's model.

    ``index`` is the content of their index, if they have one. The old model's files are removed at the end. After an
    error the folder holds the old model, and no new file. TransferError if the system refuses.
    """
    old = {name for name in os.listdir(folder) if is_model_file(name)}
    with contextlib.ExitStack() as stack:
        new: AtomicFile | None = None
        if index is not None:  # first: a full disk changes nothing
            new = stack.enter_context(AtomicFile(os.path.join(folder, INDEX_NAME)))
            new.fill(index)
        aside = _set_aside(folder, old, names)
        try:
            yield
            if new is not None:
                new.commit(durable=True)
        except BaseException:
            remove_new_files(folder, names, old, index)
            _restore(folder, aside, index)
            raise
    # Also if the save before was interrupted: what is left of it must not be taken for this one's.
    kept = names if index is None else {*names, INDEX_NAME}
    remove_files(folder, (old | set(aside.links.values())) - kept)
    clear_leftovers(folder, is_model_file)  # of a save that was killed, of another number of files


class _Aside(NamedTuple):
    """Old files with a second name: ``links`` maps the first one to it. ``content``: the old index's."""

    links: Mapping[str, str]
    content: bytes


def _set_aside(folder: str, old: set[str], names: set[str]) -> _Aside:
    """Give the files of the old model that ``names`` replaces a second name, by which its index names them."""
    nothing = _Aside({}, b"")
    path = os.path.join(folder, INDEX_NAME)
    if INDEX_NAME not in old or SINGLE_NAME in old:  # then that file is the old model, and no name of several
        return nothing
    try:
        found = read_index(path)
    except CorruptFileError:
        return nothing  # there is no old model
    replaced = sorted(names.intersection(found.files.values(), old))
    if not replaced:
        return nothing
    with opened(path) as (fd, size):
        content = read_at(path, fd, 0, size)
    links = dict(zip(replaced, _free_names(old, len(replaced)), strict=True))
    try:
        for name, link in links.items():
            _link(folder, name, link)
    except OSError:
        remove_files(folder, {INDEX_NAME, *links.values()})
        return nothing
    files = {tensor: links.get(file, file) for tensor, file in found.files.items()}
    sync_folder(folder)
    write_durably(path, (json.dumps({"metadata": found.metadata, "weight_map": files}, indent=2) + "\n").encode())
    return _Aside(links, content)


def _free_names(old: set[str], count: int) -> list[str]:
    """Names of ``count`` files that no file has, and that a later save removes if they are left behind."""
    each = (
        [f"model-{number:05d}-of-{several:05d}.safetensors" for number in range(1, count + 1)]
        for several in range(_LARGEST_COUNT, 0, -1)
    )
    return next(names for names in each if old.isdisjoint(names))  # the folder has fewer files than there are counts


def _restore(folder: str, aside: _Aside, index: bytes | None) -> None:
    """Give the old files back their names, unless the new index names the new ones already."""
    if not aside.links:
        return
    path = os.path.join(folder, INDEX_NAME)
    with opened(path) as (fd, size):
        if read_at(path, fd, 0, size) == index:
            return
    for name, link in aside.links.items():
        spare = f"{link}.old"  # a second link, which replaces what has the name
        _link(folder, link, spare)
        one, other = os.path.join(folder, spare), os.path.join(folder, name)
        os.replace(one, other)
        with contextlib.suppress(FileNotFoundError):
            os.replace(sidecar.name_of(one), sidecar.name_of(other))
    sync_folder(folder)
    write_durably(path, aside.content)
    remove_files(folder, set(aside.links.values()))


def _link(folder: str, name: str, link: str) -> None:
    """Give a file, and its sidecar if it has one, a second name. OSError if the file system refuses."""
    one, other = os.path.join(folder, name), os.path.join(folder, link)
    os.link(one, other)
    with contextlib.suppress(FileNotFoundError):
        os.link(sidecar.name_of(one), sidecar.name_of(other))
