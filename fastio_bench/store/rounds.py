"""Times the block store and fio on the same file: activations of a size are written in sequence and read in reverse.

Both overwrite blocks that were written before, as every training iteration but the first does. Neither syncs: the
store's content has no use after a crash. Memory is aligned, as Offload's is, which moves whole pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from fastio.offload.stores.block_store import BLOCK, BlockStore
from fastio_bench.harness.rounds import Contestant, Failure, Measured, Sample, Task, interleave
from fastio_bench.harness.stats import Summary
from fastio_bench.machine import disk_limit
from fastio_bench.machine.disk_limit import Limit
from fastio_bench.peers.goals import Goal

WRITE, READ = "write", "read"
STORE = "block store"
SHARE, BEYOND = 0.95, 0.02  # of fio's bandwidth; CPU seconds per GB above fio's
_CHUNK = 1 << 20  # words compared at a time


@dataclass
class StoreRounds:
    """``sizes`` of activations in bytes; ``total``: the bytes of one timed call, whole activations, at least one."""

    folder: Path
    sizes: Sequence[int]
    rounds: int
    total: int
    driver: Literal["uring", "threads"] | None = None
    tell: Callable[[str, float], None] = lambda what, weight: None

    def weights(self) -> list[float]:
        """The weight of each size, by the bytes that it moves."""
        return [_count(_stored(size), self.total) * _stored(size) / self.total for size in self.sizes]

    def run(self) -> Iterator[Sample | Failure]:
        """Each outcome as soon as it is known. Raises OSError if the store returns other bytes than it got."""
        for size, weight in zip(self.sizes, self.weights(), strict=True):
            self.tell(label(size), 0)
            yield from self._size(size)
            self.tell(label(size), weight)

    def _size(self, size: int) -> Iterator[Sample | Failure]:
        nbytes = _stored(size)
        count = _count(nbytes, self.total)
        path = self.folder / "store"
        path.touch()
        memory = disk_limit.resident(nbytes * count)
        try:
            with BlockStore(path, capacity=nbytes * count, driver=self.driver) as store:
                blobs = _Blobs(store, memory, nbytes, count)
                blobs.check()
                disk, others = disk_limit.find(), []
                others.append((disk_limit.TOOL, disk))
                if not isinstance(disk, disk_limit.RingLimit):
                    others.append((disk_limit.RING, disk_limit.RingLimit()))
                for work in (WRITE, READ):
                    ours = Contestant(STORE, *((blobs.write, blobs.free) if work == WRITE else (blobs.read,)))
                    theirs = [Contestant(name, _other(tool, work, path, memory.nbytes)) for name, tool in others]
                    yield from interleave(Task(work, label(size), memory.nbytes), [ours, *theirs], self.rounds)
        finally:
            path.unlink()


class _Blobs:
    """``count`` blobs of ``nbytes``, side by side in one memory."""

    def __init__(self, store: BlockStore, memory: torch.Tensor, nbytes: int, count: int) -> None:
        self._store, self._memory, self._nbytes, self._count = store, memory, nbytes, count

    def write(self) -> str:
        for index in range(self._count):
            self._store.write(index, self._memory.data_ptr() + index * self._nbytes, self._nbytes)
            self._store.update()
        for index in range(self._count):
            self._store.wait(index)
        return self._way()

    def read(self) -> str:
        for index in reversed(range(self._count)):
            self._store.read(index, self._memory.data_ptr() + index * self._nbytes, self._nbytes)
            self._store.update()
        for index in reversed(range(self._count)):
            self._store.wait(index)
        return self._way()

    def free(self) -> None:
        for index in range(self._count):
            self._store.free(index)

    def check(self) -> None:
        """Write all, clear the memory, read it back and compare. The blobs stay in the store."""
        words = self._memory.view(torch.int64)
        for begin in range(0, len(words), _CHUNK):
            torch.arange(begin, min(begin + _CHUNK, len(words)), out=words[begin : begin + _CHUNK])
        self.write()
        words.zero_()
        self.read()
        for begin in range(0, len(words), _CHUNK):
            expected = torch.arange(begin, min(begin + _CHUNK, len(words)))
            if not torch.equal(words[begin : begin + _CHUNK], expected):
                raise OSError(f"the block store changed what it was given, near byte {begin * 8}")

    def _way(self) -> str:
        return "; ".join([self._store.driver, *self._store.notes])


def goals(summaries: Sequence[Summary]) -> Iterator[Goal]:
    """The goals at each size and in each direction. The baseline of ``summaries`` is the disk's limit."""
    found = {(summary.work, summary.workload, summary.tool): summary for summary in summaries}
    for (work, workload, tool), own in found.items():
        other = found.get((work, workload, disk_limit.TOOL))
        if tool == STORE and other is not None and own.ratio is not None:
            yield Goal(work, workload, disk_limit.TOOL, SHARE, own.ratio)
            beyond = own.cpu_per_gb - other.cpu_per_gb
            yield Goal(work, workload, f"{disk_limit.TOOL}, CPU beyond it", BEYOND, beyond, "s/GB", least=False)


def label(size: int) -> str:
    """A size as text, in 10^6 bytes, as the papers count."""
    return f"{size / 1e6:,.4g} MB"


def _stored(size: int) -> int:
    """The bytes of an activation in the store: whole blocks."""
    return -(-size // BLOCK) * BLOCK


def _count(size: int, total: int) -> int:
    return max(1, total // size)


def _other(tool: Limit, work: str, path: Path, nbytes: int) -> Callable[[], Measured]:
    return lambda: (tool.overwrite if work == WRITE else tool.read)(path, nbytes)
