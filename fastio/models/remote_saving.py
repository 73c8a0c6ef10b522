"""Saves a model into a folder at a remote place: to this machine first, then by uploads, the index last."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable

from fastio.models.shards import INDEX_NAME, SINGLE_NAME, is_model_file
from fastio.remote.place import place_of
from fastio.remote.renamed_errors import renamed_errors
from fastio.remote.staging import staging_folder
from fastio.remote.upload import upload
from fastio.remote.urls import joined


def save_folder(url: str, save: Callable[[str], None]) -> None:
    """Call ``save`` with a local folder, and upload the files of a model that are there; the index is the last one.

    Afterwards files of an earlier model that the new one lacks are removed. If names of several files are written
    again, the old index is removed first, as for a folder of this machine. RemoteError if an upload fails: files under
    names that were free are removed.
    """
    place = place_of(url)
    with staging_folder() as folder:
        with renamed_errors(folder, url):
            save(folder)
        new = sorted(os.listdir(folder), key=lambda name: (name == INDEX_NAME, name))
        old = {name for name in place.names() if is_model_file(name)}
        if INDEX_NAME in new and not old.isdisjoint(set(new) - {INDEX_NAME}):
            _remove(url, old & {INDEX_NAME, SINGLE_NAME})
        made = place.make_folder()
        try:
            for name in new:
                upload(os.path.join(folder, name), joined(url, name))
        except BaseException:
            with contextlib.suppress(OSError):
                _remove(url, set(new) - old)
            place.remove_folders(made)
            raise
        _remove(url, old - set(new))


def _remove(url: str, names: Iterable[str]) -> None:
    for name in sorted(names, key=lambda name: (name != INDEX_NAME, name)):
        place_of(joined(url, name)).remove()
