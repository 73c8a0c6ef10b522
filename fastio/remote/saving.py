"""Saves one file to a remote place: to this machine first, then by an upload."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

from fastio.errors import UnsupportedError
from fastio.remote.place import place_of
from fastio.remote.renamed_errors import renamed_errors
from fastio.remote.staging import staging_folder
from fastio.remote.upload import upload
from fastio.remote.urls import base_of
from fastio.results import SaveResult
from fastio.url_secrets import hide_secrets

_MOST = 255  # bytes of the name of a file


def saved_remotely(url: str, save: Callable[[str], SaveResult]) -> SaveResult:
    """Call ``save`` with a local path, and upload what is there; returns its result with the URL and the whole time.

    RemoteError if the upload fails: the place has what it had before. UnsupportedError for a URL without a file's name.
    """
    started = time.perf_counter()
    base = base_of(hide_secrets(url))
    if url.endswith("/") or base in (".", ".."):
        raise UnsupportedError(
            f"{hide_secrets(url)}: it names a folder, expected the URL of a file; add the name of a file"
        )
    place_of(url)  # what is not installed is told before anything is written
    with staging_folder() as folder:
        path = os.path.join(folder, _short(base))  # a .pt has its name inside
        with renamed_errors(path, url):
            result = save(path)
        began = time.perf_counter()
        upload(path, url)
    ended = time.perf_counter()
    note = f"uploaded in {ended - began:.2f} s"
    return replace(result, path=url, seconds=ended - started, fallbacks=(*result.fallbacks, note))


def _short(name: str) -> str:
    """The end of a name that is longer than names of this machine's files: those of object stores may be."""
    return os.fsencode(name)[-_MOST:].decode(errors="ignore") if len(os.fsencode(name)) > _MOST else name
