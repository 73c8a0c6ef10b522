"""The limit of a warm load into memory that is there: a plain copy of the page cache, by a thread a processor."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from fastio.memory.raw_memory import view
from fastio_bench.harness import page_cache
from fastio_bench.harness.rounds import Measured, SystemClock, clocked
from fastio_bench.machine import disk_limit

_BLOCK = 8 << 20


def copy_shards(paths: Sequence[str]) -> Measured:
    """Bring files into the page cache, then time copying them into resident memory."""
    for path in paths:
        page_cache.warm(path)
    sizes = [os.path.getsize(path) for path in paths]
    tensor = disk_limit.resident(sum(sizes))
    memory = view(tensor.data_ptr(), tensor.nbytes)
    fds = [os.open(path, os.O_RDONLY) for path in paths]
    blocks, start = [], 0
    for fd, size in zip(fds, sizes, strict=True):
        blocks += [(fd, at, start + at, min(_BLOCK, size - at)) for at in range(0, size, _BLOCK)]
        start += size

    def copy(block: tuple[int, int, int, int]) -> None:
        fd, offset, begin, nbytes = block
        while nbytes:
            count = os.preadv(fd, [memory[begin : begin + nbytes]], offset)
            if not count:
                raise OSError(f"a shard ends at byte {offset}")
            offset, begin, nbytes = offset + count, begin + count, nbytes - count

    threads = len(os.sched_getaffinity(0))
    try:
        with ThreadPoolExecutor(threads) as pool:
            _, took = clocked(lambda: [*pool.map(copy, blocks)], SystemClock())
    finally:
        for fd in fds:
            os.close(fd)
    return replace(took, way=f"page cache into resident memory, {threads} threads")
