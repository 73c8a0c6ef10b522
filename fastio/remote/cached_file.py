"""Opens local copies of remote files, which are downloaded if the cache lacks them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from fastio._native import Descriptor
from fastio.errors import CorruptFileError, FastIOError, RemoteError, TransferError
from fastio.remote import cache_folder
from fastio.remote.download import download
from fastio.remote.place import Found, Place, Tick, place_of
from fastio.runtime.interrupt_safe_thread import POLL_SECONDS
from fastio.sizes import format_size
from fastio.url_secrets import hide_secrets

_TRIES = 3  # of a file that is replaced while it is downloaded
_FILES_AT_ONCE = 4
_log = logging.getLogger("fastio.remote")


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
            file = _of_cache(place, found, tick)
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


def _of_cache(place: Place, found: Found, tick: Tick | None) -> tuple[str, Descriptor] | None:
    """The path and the descriptor of a copy; None if the remote file was replaced meanwhile."""
    folder = cache_folder.folder("files")
    version = found.version if found.is_lasting else os.urandom(16).hex()  # then no later read uses the copy
    path = os.path.join(folder, f"{cache_folder.digest(place.url)}-{cache_folder.digest(f'{found.nbytes} {version}')}")
    file = _existing(path, found.nbytes)
    if file is None:
        part = _locked_part(path, tick)
        if part is None:  # another process or thread has downloaded it
            file = _existing(path, found.nbytes)
        else:
            with contextlib.closing(part):
                file = _existing(path, found.nbytes) or _downloaded(place, found, path, part, tick)
    return None if file is None else (path, file)


def _existing(path: str, nbytes: int) -> Descriptor | None:
    """A copy, open and locked, if the cache has it. One of another length is damaged, and is removed."""
    file = Descriptor(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fd = file.open()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TransferError(error.errno or 0, "opening the copy in the cache", path) from error
    _share(fd)
    if os.fstat(fd).st_size == nbytes:
        return file
    with contextlib.suppress(OSError):
        os.unlink(path)
    file.close()
    return None


def _share(fd: int) -> None:
    """Keep a copy from being removed, and note that it was used."""
    with contextlib.suppress(OSError):  # of another user, or on a filesystem without locks
        fcntl.flock(fd, fcntl.LOCK_SH)
        os.utime(fd, ns=(time.time_ns(), os.fstat(fd).st_mtime_ns))


def _locked_part(path: str, tick: Tick | None) -> Descriptor | None:
    """The file to download to, which no other download uses; None if the copy is whole meanwhile."""
    name = path + cache_folder.PART
    while True:
        part = Descriptor(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fd = part.open()
            while not _is_locked(fd):
                if os.path.exists(path):
                    break
                if tick is not None:
                    tick()
                time.sleep(POLL_SECONDS)
            else:
                if _is_at(name, fd):
                    os.ftruncate(fd, 0)
                    return part
        except OSError as error:
            part.close()
            if isinstance(error, FastIOError):
                raise
            raise TransferError(error.errno or 0, "opening a file of the cache", name) from error
        except BaseException:
            part.close()
            raise
        part.close()
        if os.path.exists(path):
            return None


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(name: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(name, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False


def _downloaded(place: Place, found: Found, path: str, part: Descriptor, tick: Tick | None) -> Descriptor | None:
    """Download a file and give it its name; None if the remote file was replaced meanwhile."""
    name, fd = path + cache_folder.PART, part.fileno()
    began = time.perf_counter()
    try:
        cache_folder.make_room(os.path.dirname(path), found.nbytes)
        _reserve(name, fd, found.nbytes)
        if not _is_whole(place, found, name, fd, tick):
            os.unlink(name)
            return None
        file = Descriptor(name, os.O_RDONLY | os.O_NOFOLLOW)
        file.open()
        # The same on every machine: ranks compare the times of their files.
        os.utime(fd, ns=(time.time_ns(), int(os.path.basename(path).rpartition("-")[2][:14], 16)))
        _sync(name, fd)
        os.rename(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            if _is_at(name, fd):
                os.unlink(name)
        raise
    fcntl.flock(fd, fcntl.LOCK_UN)  # closing would leave it to a process that was forked meanwhile
    part.close()
    _share(file.fileno())
    cache_folder.remove_others(path)
    seconds = time.perf_counter() - began
    _log.info("%s: downloaded, %s in %.2f s", hide_secrets(place.url), format_size(found.nbytes), seconds)
    return file


def _is_whole(place: Place, found: Found, name: str, fd: int, tick: Tick | None) -> bool:
    """Download the bytes of a file; returns whether it is still the file that was found before."""
    try:
        download(place, found, name, fd, tick)
    except RemoteError:
        if place.find().is_same(found):
            raise
        return False
    return place.find().is_same(found)


def _reserve(name: str, fd: int, nbytes: int) -> None:
    try:
        if nbytes:
            os.posix_fallocate(fd, 0, nbytes)
    except OSError as error:
        raise TransferError(error.errno or 0, "reserving room in the cache", name) from error


def _sync(name: str, fd: int) -> None:
    """Write it to the disk: after a power cut, a copy that has its name has its bytes."""
    try:
        os.fsync(fd)
    except OSError as error:
        raise TransferError(error.errno or 0, "fsync", name) from error
