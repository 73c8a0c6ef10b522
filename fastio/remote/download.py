"""Downloads a file into an open one: asynchronous filesystems give parallel ranges, others one after the other."""

from __future__ import annotations

import asyncio
import errno

from fastio.errors import RemoteError
from fastio.files.full_write import write_all
from fastio.remote.place import Found, Place, Tick, run
from fastio.remote.remote_errors import translate_remote_errors
from fastio.sizes import exact_size

_CHUNK = 8 << 20
_AT_ONCE = 8  # ranges of a file in memory, 64 MiB
_OPERATION = "downloading"


def download(place: Place, found: Found, path: str, fd: int, tick: Tick | None) -> None:
    """Fill the open, empty file ``fd`` at ``path`` with a remote file. RemoteError if that fails or has other bytes."""
    with translate_remote_errors(_OPERATION, place.url):
        if place.is_async and found.has_ranges:
            _by_ranges(place, found.nbytes, path, fd, tick)
        else:
            _in_order(place, found.nbytes, path, fd, tick)


def _in_order(place: Place, nbytes: int, path: str, fd: int, tick: Tick | None) -> None:
    done = 0
    with place.fs.open(place.path, "rb") as file:
        while data := file.read(_CHUNK):
            if done + len(data) > nbytes:
                raise _other_length(place.url, f"more than {exact_size(nbytes)}", nbytes)
            write_all(path, fd, memoryview(data), done)
            done += len(data)
            if tick is not None:
                tick()
    if done != nbytes:
        raise _other_length(place.url, exact_size(done), nbytes)


def _by_ranges(place: Place, nbytes: int, path: str, fd: int, tick: Tick | None) -> None:
    fs = place.fs

    async def work() -> None:
        gate = asyncio.Semaphore(_AT_ONCE)

        async def fetch(begin: int, end: int) -> None:
            async with gate:
                data = await fs._cat_file(place.path, start=begin, end=end)
                if len(data) != end - begin:
                    raise _other_length(place.url, f"{exact_size(len(data))} from byte {begin}", end - begin)
                # On this thread: a write on another one could outlast a cancelled task, and the descriptor.
                write_all(path, fd, memoryview(data), begin)

        tasks = [asyncio.ensure_future(fetch(begin, min(begin + _CHUNK, nbytes))) for begin in range(0, nbytes, _CHUNK)]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    run(fs, work, tick)


def _other_length(url: str, got: str, expected: int) -> RemoteError:
    problem = f"the place gave {got}, expected {exact_size(expected)}"
    return RemoteError(errno.EIO, _OPERATION, problem, "load it again; if it stays so, upload it again", url)
