"""A file or folder at a remote place: its filesystem of fsspec, and its path there."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import TimeoutError as NotYet
from time import time as now
from typing import Any, NamedTuple

from fastio.errors import RemoteError, quoted
from fastio.remote.remote_errors import translate_remote_errors
from fastio.remote.urls import is_remote
from fastio.runtime.installation import pip_install
from fastio.runtime.interrupt_safe_thread import POLL_SECONDS

Tick = Callable[[], None]
"""Called now and then during a transfer; what it raises ends the transfer."""

# Where a new object is visible only once all of it is there.
_OBJECT_STORES = frozenset({
    "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "hf", "oci", "ocilake", "oss", "obs", "tos", "r2", "b2",
})  # fmt: skip
_LOCALHOST = re.compile(r"(?<![\w+.-])(file|local)://localhost/")  # fsspec takes the host for a folder's name
_ENDING_SECONDS = 10.0  # that a cancelled transfer may take
# By which filesystems tell one content of a file from another: of the first that a file has, and of the times.
_DIGESTS = ("etag", "md5", "md5hash", "contentmd5", "digest", "crc32c", "generation", "versionid", "blobid", "sha256")
_TIMES = ("mtime", "lastmodified", "modified", "updated", "created", "timemodified")
_COARSE_SECONDS = 60.0  # that the clock of a place may be behind, and a second


class Found(NamedTuple):
    """What a filesystem says of a file: its bytes, a text that changes with its content, and whether parts can be read.

    ``version`` is empty if it tells none. ``is_lasting``: another content will have another version.
    """

    nbytes: int
    version: str
    has_ranges: bool
    is_lasting: bool

    def is_same(self, other: Found) -> bool:
        """Whether length and version are those that were found before."""
        return (self.nbytes, self.version) == (other.nbytes, other.version)


class Place(NamedTuple):
    """A URL, its filesystem and its path there."""

    url: str
    fs: Any
    path: str

    @property
    def is_object_store(self) -> bool:
        """Whether a new file is visible only once all of it is there."""
        return not _OBJECT_STORES.isdisjoint(self._protocols())

    @property
    def is_local(self) -> bool:
        """Whether the filesystem is that of this machine."""
        return "file" in self._protocols()

    @property
    def identity(self) -> str:
        """A text that all URLs of this place have in common, and no other place's."""
        if self.is_local:
            return f"file://{os.path.realpath(self.path)}"
        options = sorted((name, repr(value)) for name, value in self.fs.storage_options.items())
        return f"{sorted(self._protocols())} {options} {self.path.strip('/')}"

    @property
    def is_async(self) -> bool:
        """Whether the filesystem's own methods are coroutines. Those of a cache around another one pretend to be."""
        from fsspec.asyn import AsyncFileSystem

        return isinstance(self.fs, AsyncFileSystem)

    def find(self) -> Found:
        """Ask for the file anew. RemoteError, which is also a FileNotFoundError if there is none."""
        with translate_remote_errors("looking for the file", self.url):
            self.fs.invalidate_cache(self.path)
            info = self.fs.info(self.path)
        if info.get("type") == "directory":
            raise RemoteError(
                errno.EISDIR, "opening the file", "this is a folder",
                "name a file in it, or open a model's folder with fastio.safe_open or fastio.load_model", self.url,
            )  # fmt: skip
        if info.get("size") is None:
            raise RemoteError(
                errno.EIO, "looking for the file", "its length is not told", "download it by other means", self.url
            )
        version, is_lasting = _version(info)
        return Found(int(info["size"]), version, bool(info.get("partial", True)), is_lasting)

    def names(self) -> set[str]:
        """The names of the files and folders in a folder; empty if there is none."""
        try:
            with translate_remote_errors("listing the folder", self.url):
                self.fs.invalidate_cache(self.path)
                found = self.fs.ls(self.path, detail=False)
        except FileNotFoundError:
            return set()
        except NotADirectoryError:
            return set()
        return {name.rstrip("/").rpartition("/")[2] for name in found} - {""}

    def find_all(self) -> set[str]:
        """The paths of all files below a folder, relative to it; empty if there is none."""
        try:
            with translate_remote_errors("listing the folder", self.url):
                self.fs.invalidate_cache()
                found = self.fs.find(self.path)
        except FileNotFoundError:
            return set()
        begin = f"{self.path.rstrip('/')}/"
        return {path.removeprefix(begin) for path in found}

    def read(self) -> bytes:
        """All bytes of a small file."""
        with translate_remote_errors("reading", self.url):
            data: bytes = self.fs.cat_file(self.path)
        return data

    def write(self, data: bytes) -> None:
        """Write a small file, whose content nobody reads."""
        with translate_remote_errors("writing", self.url):
            self.fs.pipe_file(self.path, data)

    def is_folder(self) -> bool:
        """Whether there is a folder; RemoteError, also a FileNotFoundError, if there is nothing."""
        with translate_remote_errors("looking for the file", self.url):
            self.fs.invalidate_cache(self.path)
            return bool(self.fs.info(self.path).get("type") == "directory")

    def remove(self) -> None:
        """Remove a file; one that is gone already is no error."""
        try:
            with translate_remote_errors("removing the file", self.url):
                self.fs.rm_file(self.path)
        except FileNotFoundError:
            return

    def make_folder(self) -> list[str]:
        """Make a folder, and those that it is in; return the paths of those that were missing. Object stores have none.

        A folder that could not be made leaves none.
        """
        missing: list[str] = []
        if self.is_object_store:
            return missing
        with translate_remote_errors("making the folder", self.url):
            path = self.path
            while path.strip("/") and not self.fs.exists(path):
                missing.append(path)
                path = self.fs._parent(path)
            try:
                self.fs.makedirs(self.path, exist_ok=True)
            except BaseException:
                self.remove_folders(missing)
                raise
        return missing

    def remove_folders(self, paths: Iterable[str]) -> None:
        """Remove folders that :meth:`make_folder` made, unless something is in them."""
        for path in paths:
            with contextlib.suppress(Exception):
                self.fs.rmdir(path)

    def _protocols(self) -> set[str]:
        protocol = self.fs.protocol
        return {protocol} if isinstance(protocol, str) else set(protocol)


def place_of(url: str) -> Place:
    """The place of a URL. RemoteError without fsspec or the filesystem's library, which says what to install."""
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        problem = f"fsspec is not installed ({error})"
        raise RemoteError(errno.ENOPKG, "opening the URL", problem, pip_install("remote"), url) from error
    _check_chain(url)
    with translate_remote_errors("opening the URL", url):
        fs, path = url_to_fs(_LOCALHOST.sub(r"\1:///", url))
    return Place(url, fs, path)


def _check_chain(url: str) -> None:
    """Refuse ``::`` in a name: for fsspec it ends the name, so that another file would be read or written."""
    _, chained, last = url.rpartition("::")
    if chained and not is_remote(last):
        problem = f"it is a chain of URLs that ends in {quoted(last)}, expected a URL after each '::'"
        cure = "use a name without '::', or begin the last part with file://"
        raise RemoteError(errno.EINVAL, "opening the URL", problem, cure, url)


def run(fs: Any, work: Callable[[], Coroutine[Any, Any, None]], tick: Tick | None) -> None:
    """Run a coroutine of an asynchronous filesystem on its thread. An interrupt here ends it before it is raised."""
    ended = threading.Event()

    async def whole() -> None:
        try:
            await work()
        finally:
            ended.set()

    future = asyncio.run_coroutine_threadsafe(whole(), fs.loop)
    try:
        while True:
            try:
                future.result(POLL_SECONDS)
                return
            except NotYet:
                if future.done():
                    raise
                if tick is not None:
                    tick()
    except BaseException:
        if not future.done():
            future.cancel()
            ended.wait(_ENDING_SECONDS)
        raise


def _version(info: dict[str, Any]) -> tuple[str, bool]:
    """A text that changes with a file's content, and whether it does so whenever the file is replaced from now on."""
    known = {name.lower().replace("-", "").replace("_", ""): value for name, value in info.items()}
    digest = next((f"{name}={known[name]}" for name in _DIGESTS if known.get(name)), "")
    if digest:
        return digest, True
    times = {name: known[name] for name in (*_TIMES, "ino") if known.get(name) is not None}
    text = os.fsdecode(",".join(f"{name}={value}" for name, value in times.items()))
    return text, bool(text) and not _are_coarse([times[name] for name in _TIMES if name in times])


def _are_coarse(times: list[Any]) -> bool:
    """Whether times are so new, and in whole seconds, that a file that replaces this one may get the same."""
    seconds = [float(time.timestamp()) if hasattr(time, "timestamp") else time for time in times]
    known = [one for one in seconds if isinstance(one, (int, float))]
    return bool(known) and all(one == int(one) for one in known) and max(known) > now() - _COARSE_SECONDS
