"""The limit of a conversion: what the disk reads and writes at once, by direct I/O from and to resident memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from fastio.transports import registry
from fastio.transports.transport import Extent, ReadRequest, Span, WriteRequest
from fastio_bench.harness import page_cache
from fastio_bench.harness.rounds import Measured, SystemClock, clocked
from fastio_bench.machine import disk_limit

_BLOCK = 64 << 20


def read_and_write(paths: Sequence[str], target: Path) -> Measured:
    """Time reading cold files while as many bytes are written into a new file, which is allocated and synced.

    Neither waits for the other: a conversion cannot be faster.
    """
    for path in paths:
        page_cache.drop(path)
    total = sum(os.path.getsize(path) for path in paths)
    ring = registry.get("uring")
    rooms = [disk_limit.resident(_BLOCK) for _ in range(2)]

    def read() -> None:
        room = rooms[0].data_ptr()
        for path in paths:
            with _opened(path, os.O_RDONLY) as (fd, size):
                for at, nbytes in _blocks(size):
                    extent = Extent(at, nbytes, room, checksum=False, owner=rooms[0])
                    ring.read(ReadRequest(path, fd, size, (extent,), Span(at, nbytes, room)))

    def write() -> None:
        room = rooms[1].data_ptr()
        with _opened(str(target), os.O_RDWR | os.O_CREAT | os.O_TRUNC) as (fd, _):
            os.posix_fallocate(fd, 0, total)
            for at, nbytes in _blocks(total):
                extent = Extent(at, nbytes, room, checksum=False, owner=rooms[1])
                ring.write(WriteRequest(str(target), fd, total, (extent,)))
            os.fsync(fd)

    def both() -> None:
        works: list[Callable[[], None]] = [read, write]
        with ThreadPoolExecutor(2) as pool:
            for running in [pool.submit(work) for work in works]:
                running.result()

    _, took = clocked(both, SystemClock())
    return replace(took, way="direct reads of the files beside direct writes of a new one")


def _blocks(size: int) -> Iterator[tuple[int, int]]:
    return ((at, min(_BLOCK, size - at)) for at in range(0, size, _BLOCK))


@contextlib.contextmanager
def _opened(path: str, flags: int) -> Iterator[tuple[int, int]]:
    fd = os.open(path, flags, 0o600)
    try:
        yield fd, os.fstat(fd).st_size
    finally:
        os.close(fd)
