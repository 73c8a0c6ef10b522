"""Finds the copy of a remote file in the cache, or downloads one, which has its name when it is whole."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time

from fastio._native import Descriptor
from fastio.errors import FastIOError, RemoteError, TransferError
from fastio.remote import cache_folder
from fastio.remote.download import download
from fastio.remote.place import Found, Place, Tick
from fastio.runtime.interrupt_safe_thread import POLL_SECONDS
from fastio.sizes import format_size
from fastio.url_secrets import hide_secrets

_log = logging.getLogger("fastio.remote")


def copy_of(place: Place, found: Found, tick: Tick | None) -> tuple[str, Descriptor] | None:
    """The path of a copy, and its descriptor, open and locked; None if the remote file was replaced meanwhile."""
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
