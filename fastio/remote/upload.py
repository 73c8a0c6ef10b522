"""Uploads a local file, so that the remote place has all of it under its name, or what it had before.

A new object of an object store is visible when all of it is there. Elsewhere the file gets a temporary name first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Callable
from typing import Any

from fastio.errors import RemoteError
from fastio.files.atomic_file import sync_folder
from fastio.files.open_file import opened
from fastio.remote import multipart
from fastio.remote.place import Place, Tick, place_of, run
from fastio.remote.remote_errors import translate_remote_errors
from fastio.remote.urls import base_of, joined, parent_of
from fastio.sizes import exact_size

_CHUNK = 16 << 20
_TEMPORARY = re.compile(r"\.(.+)\.fastio-[0-9a-f]{16}\.tmp")
_ABANDONED_SECONDS = 24 * 3600  # a temporary file that nobody has written to for so long is a killed upload's
_OPERATION = "uploading"


def upload(path: str, url: str, tick: Tick | None = None) -> None:
    """Upload the file at a path. RemoteError, or what ``tick`` raises: the place has what it had before."""
    place = place_of(url)
    if place.is_object_store:
        _put(path, place, tick)
        _check(place, os.path.getsize(path))
        return
    _refuse_folder(place)
    _remove_abandoned(url)
    temporary = place_of(joined(parent_of(url), f".{base_of(url)}.fastio-{os.urandom(8).hex()}.tmp"))
    try:
        _copy(path, temporary, url, tick)
        _check(temporary, os.path.getsize(path))
        with translate_remote_errors("renaming the uploaded file", url):
            _rename(place.fs, temporary.path, place.path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.remove()
        raise
    _check(place, os.path.getsize(path))
    if place.is_local:
        sync_folder(os.path.dirname(place.path))


def _refuse_folder(place: Place) -> None:
    """RemoteError for a folder's name: moving a file there would put it into the folder, under its temporary name."""
    try:
        is_folder = place.is_folder()
    except FileNotFoundError:
        return
    if is_folder:
        cure = "name a file in it, or remove it"
        raise RemoteError(errno.EISDIR, _OPERATION, "there is a folder of this name", cure, place.url)


def _rename(fs: Any, old: str, new: str) -> None:
    from fsspec import AbstractFileSystem

    if getattr(fs.mv, "__func__", None) is not AbstractFileSystem.mv:
        fs.mv(old, new)
        return
    fs.cp_file(old, new)  # the mv that filesystems inherit does so too, but takes names with * ? [ for patterns
    fs.rm_file(old)


def _put(path: str, place: Place, tick: Tick | None) -> None:
    fs: Any = place.fs
    with translate_remote_errors(_OPERATION, place.url):
        if not place.is_async:
            fs.put_file(path, place.path)
            return
        with multipart.aborted_on_interrupt(place):
            run(fs, lambda: fs._put_file(path, place.path), tick)


def _copy(path: str, place: Place, url: str, tick: Tick | None) -> None:
    with opened(path) as (fd, _), translate_remote_errors(_OPERATION, url):
        with place.fs.open(place.path, "wb") as file:
            at = 0
            while data := os.pread(fd, _CHUNK, at):
                file.write(data)
                at += len(data)
                if tick is not None:
                    tick()
        if place.is_local:
            with open(place.path, "rb") as written:
                os.fsync(written.fileno())


def _check(place: Place, nbytes: int) -> None:
    """Compare the length of what was uploaded."""
    found = place.find().nbytes
    if found != nbytes:
        problem = f"the place has {exact_size(found)}, expected {exact_size(nbytes)}"
        raise RemoteError(errno.EIO, _OPERATION, problem, "save it again", place.url)


def _remove_abandoned(url: str) -> None:
    """Remove temporary files of uploads of this file that were killed long ago."""
    folder, base = place_of(parent_of(url)), base_of(url)
    for name in folder.names():
        match = _TEMPORARY.fullmatch(name)
        if match is not None and match[1] == base:
            old = place_of(joined(folder.url, name))
            with contextlib.suppress(OSError):
                if _age(old) > _ABANDONED_SECONDS:
                    old.remove()


def _age(place: Place) -> float:
    """The seconds since a file was written; 0 if the filesystem does not tell."""
    with translate_remote_errors("looking for the file", place.url):
        try:
            modified: Callable[[str], Any] = place.fs.modified
            return time.time() - float(modified(place.path).timestamp())
        except NotImplementedError:
            return 0.0
