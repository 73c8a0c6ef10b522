"""Opens local copies of remote files, which are downloaded if the cache lacks them."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from fastio.errors import CorruptFileError, FastIOError, RemoteError, TransferError
from fastio.remote.cached_copy import copy_of
from fastio.remote.place import Tick, place_of

_TRIES = 3  # of a file that is replaced while it is downloaded
_FILES_AT_ONCE = 4


class CachedFile:
    """A local copy of a remote file, open for reading. It stays readable until this is closed, whatever the cache does.

    The remote file is looked for anew: a copy is used only if length and version (ETag, checksum or time) are still the
    remote's. RemoteError, which is also a FileNotFoundError if there is no such file; TransferError if the copy cannot
    be written.
    """

    def __init__(self, url: str, tick: Tick | None = None) -> None:
        place = place_of(url)
        for _ in range(_TRIES):
            found = place.find()
            file = copy_of(place, found, tick)
            if file is not None:
                (self._path, self._file), self._is_lasting = file, found.is_lasting
                return
        raise RemoteError(
            errno.EIO, "downloading", f"it was replaced {_TRIES} times meanwhile", "load it when it is complete", url
        )

    def open(self) -> int:
        """The descriptor."""
        return self._file.fileno()

    def link(self, path: str) -> None:
        """Give the copy a further name on its disk. TransferError if the system refuses."""
        try:
            os.link(self._path, path)
        except OSError as error:
            raise TransferError(error.errno or 0, "linking the copy in the cache", path) from error

    def discard(self) -> None:
        """Remove the copy from the cache: it is damaged, and the next read downloads it again."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._file.fileno()), os.stat(self._path)):
                os.unlink(self._path)

    def close(self) -> None:
        """Close the file. A copy that no later read may use is removed."""
        if not self._is_lasting:
            self.discard()
        self._file.close()


@contextlib.contextmanager
def opened(url: str) -> Iterator[tuple[int, int]]:
    """The descriptor and the size of a local copy of a remote file. A copy that is found damaged is not kept."""
    with contextlib.closing(CachedFile(url)) as file:
        fd = file.open()
        try:
            yield fd, os.fstat(fd).st_size
        except CorruptFileError:
            file.discard()
            raise


def open_all(urls: Sequence[str]) -> list[CachedFile]:
    """Open local copies of remote files; several are downloaded at the same time. Raises as :class:`CachedFile`."""
    has_failed = threading.Event()

    def tick() -> None:
        if has_failed.is_set():
            raise _StoppedError(f"one of {len(urls)} files could not be downloaded")

    opened_files: list[CachedFile] = []
    try:
        with ThreadPoolExecutor(min(_FILES_AT_ONCE, len(urls) or 1)) as threads:
            under_way = [threads.submit(CachedFile, url, tick) for url in urls]
            try:
                for future in under_way:
                    opened_files.append(future.result())
            except BaseException:
                has_failed.set()
                threads.shutdown(wait=True, cancel_futures=True)
                opened_files = [one.result() for one in under_way if _has_result(one)]
                raise
    except BaseException:
        for file in opened_files:
            file.close()
        raise
    return opened_files


class _StoppedError(FastIOError):
    """A download was stopped because of another one's error, which is raised instead."""


def _has_result(future: object) -> bool:
    return not future.cancelled() and future.done() and future.exception() is None  # type: ignore[attr-defined]
