"""Runs in each of two ranks: saves and loads of a sharded state by DCP, with its own storage and with fastio's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh

from fastio._native import crc32_at
from fastio.distributed import Reader, Writer
from fastio.results import record
from fastio_bench.checkpoint.rank_group import agreed, joined, led, sums
from fastio_bench.checkpoint.state import Shape, sharded
from fastio_bench.checkpoint.works import FASTIO, RANKS_LOAD, RANKS_SAVE, RANKS_TOOLS, WORLD, Job
from fastio_bench.harness import page_cache, warmup
from fastio_bench.harness.fresh_process import ChildError
from fastio_bench.harness.memory_reserve import Reserve
from fastio_bench.harness.rounds import Failure, Sample, SystemClock, describe
from fastio_bench.peers import catalogue, libraries
from fastio_bench.peers.contestants import remove

_LEARNING = 6  # rounds
_WRITER = partial(FileSystemWriter, thread_count=libraries.dcp_threads(WORLD))
_CALLS: tuple[tuple[Any, Any], ...] = ((_WRITER, FileSystemReader), (Writer, Reader))
_STORAGES = dict(zip(RANKS_TOOLS, _CALLS, strict=True))


def run(job: Job) -> Iterator[Sample | Failure]:
    """Everything that the two ranks measure together. Both ranks yield it."""
    with joined(job):
        yield from _Rank(job).rounds(job.saves)


class _Rank:
    """One rank: its part of the state, and its synchronization with the other."""

    def __init__(self, job: Job) -> None:
        self._shape, self._folder = Shape(job.depth, job.width), Path(job.folder)
        self._state, self._memory = sharded(self._shape, init_device_mesh("cpu", (WORLD,)))
        self._nbytes = sum(tensor.nbytes for tensor in self._memory)
        self._fingerprint = self._read()
        self._reserve = Reserve(self._nbytes)

    def rounds(self, count: int) -> Iterator[Sample | Failure]:
        """Run ``count`` rounds after some that do not count, in which fastio's dictionaries learn.

        A tool that failed takes no part in later rounds.
        """
        failed: set[str] = set()
        for number in range(-_LEARNING, count):
            for tool in RANKS_TOOLS if number >= -1 else (FASTIO,):
                for work in (RANKS_SAVE, RANKS_LOAD):
                    if tool in failed:
                        continue
                    try:
                        sample = self._timed(work, tool)
                    except (Exception, CheckpointException) as error:
                        failed.add(tool)
                        yield Failure(work, self._shape.name, tool, max(number, 0), describe(error))
                        continue
                    if number >= 0:
                        yield sample
                led(partial(remove, self._path(tool)))

    def _timed(self, work: str, tool: str) -> Sample:
        call = self._save(tool) if work == RANKS_SAVE else self._load(tool)
        clock = SystemClock()
        with warmup.ready(self._reserve):
            dist.barrier()
            cpu, wall = clock.cpu(), clock.wall()
            with record() as transfers:
                call()
            dist.barrier()
            wall, cpu = clock.wall() - wall, clock.cpu() - cpu
        way = catalogue.way(transfers[-1]) if transfers else ""
        wrong = work == RANKS_LOAD and self._read() != self._fingerprint
        nbytes, cpu, wrongs = sums(self._nbytes, cpu, wrong)
        if wrongs:  # on either rank: both must take the same branch
            raise ChildError(f"{tool} loaded something else than was saved")
        return Sample(work, self._shape.name, tool, 0, int(nbytes), wall, cpu, way=way)

    def _save(self, tool: str) -> Callable[[], object]:
        writer = _STORAGES[tool][0](self._path(tool))
        return lambda: save(self._state, storage_writer=writer)

    def _load(self, tool: str) -> Callable[[], object]:
        path = self._path(tool)
        for tensor in self._memory:
            tensor.zero_()
        led(lambda: page_cache.drop(path))
        agreed(lambda: page_cache.check(path, "cold"))
        reader = _STORAGES[tool][1](path)
        return lambda: load(self._state, storage_reader=reader)

    def _path(self, tool: str) -> Path:
        return self._folder / ("ranks-fastio" if tool == FASTIO else "ranks-dcp")

    def _read(self) -> int:
        """A CRC-32 of the memory."""
        value = 0
        for tensor in self._memory:
            value = crc32_at(tensor.data_ptr(), tensor.nbytes, value)
        return value
