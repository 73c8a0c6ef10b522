"""Runs in a fresh process: makes whole safetensors of four ranks' parts, by torch's consolidation and by fastio's.

The parts are read cold. torch leaves the new files in the page cache; they are also timed until they are synced. The
disk's limit is measured in the same rounds: the same files are read while as many bytes are written and synced.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from fastio import save_file
from fastio.distributed import consolidate
from fastio.models import safe_open
from fastio.results import record
from fastio_bench.checkpoint.state import Shape, parameters
from fastio_bench.checkpoint.works import COLUMNS, DCP, DCP_SYNCED, FASTIO, ROWS, Job
from fastio_bench.harness import page_cache
from fastio_bench.harness.fresh_process import ChildError
from fastio_bench.harness.memory_reserve import Reserve
from fastio_bench.harness.rounds import Failure, Sample, describe
from fastio_bench.harness.timing import timed
from fastio_bench.machine import disk_limit
from fastio_bench.machine.disk_copy import read_and_write
from fastio_bench.peers import catalogue
from fastio_bench.peers.contestants import remove
from fastio_bench.workloads.objects import fingerprint

_RANKS, _FILES = 4, 4
_TOOLS = (DCP, DCP_SYNCED, FASTIO, disk_limit.TOOL)


def run(job: Job) -> Iterator[Sample | Failure]:
    """Consolidate ``saves`` times by each tool, by turns, after a first time that does not count.

    Raises ChildError if a tool makes other tensors than the one before.
    """
    shape, folder = Shape(job.depth, job.width), Path(job.folder)
    for work, axis in ((ROWS, 0), (COLUMNS, -1)):
        source = folder / "parts"
        mapping, nbytes = _write(source, parameters(shape), axis)
        found: int | None = None
        failed: set[str] = set()
        for number in range(-1, job.saves):
            for tool in _TOOLS:
                if tool in failed:
                    continue
                try:
                    sample = _consolidated(work, shape, tool, source, folder / "whole", mapping, nbytes)
                except Exception as error:  # torch may lack it
                    failed.add(tool)
                    yield Failure(work, shape.name, tool, max(number, 0), describe(error))
                    continue
                if number < 0 and tool != disk_limit.TOOL:
                    with safe_open(folder / "whole") as files:
                        value = fingerprint(files.get_tensors())
                    if found not in (None, value):
                        raise ChildError(f"{tool} made other tensors than the one before")
                    found = value
                elif number >= 0:
                    yield sample
        remove(source)
        remove(folder / "whole")


def _write(folder: Path, whole: dict[str, torch.Tensor], axis: int) -> tuple[dict[str, int], int]:
    """Write each rank's parts; return the number of each tensor's new file, and the bytes of all."""
    folder.mkdir()
    total = 0
    for rank in range(_RANKS):
        generator = torch.Generator().manual_seed(rank)
        parts, offsets = {}, {}
        for name, tensor in whole.items():
            size = list(tensor.shape)
            size[axis] //= _RANKS
            begin = [0] * len(size)
            begin[axis] = rank * size[axis]
            parts[name] = torch.empty(size).uniform_(generator=generator)
            offsets[name] = {"saved_offsets": begin}
        path = folder / f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors"
        save_file(parts, path, metadata={"format": "pt", "DCP_SHARDING_INFO": json.dumps(offsets)})
        total += sum(part.nbytes for part in parts.values())
    return {name: number % _FILES + 1 for number, name in enumerate(whole)}, total


def _consolidated(
    work: str, shape: Shape, tool: str, source: Path, out: Path, mapping: dict[str, int], nbytes: int
) -> Sample:
    remove(out)
    out.mkdir()
    with Reserve(nbytes):
        pass
    if tool == disk_limit.TOOL:
        own = read_and_write(sorted(map(str, source.iterdir())), out / "limit")
        return Sample(work, shape.name, tool, 0, nbytes, own.seconds, own.cpu_seconds, way=own.way)
    page_cache.drop(source)
    call = _by_fastio(source, out, mapping) if tool == FASTIO else _by_torch(source, out, mapping, tool == DCP_SYNCED)
    _, took = timed(call, held=0)
    return Sample(work, shape.name, tool, 0, nbytes, took.seconds, took.cpu_seconds, took.extra_bytes, took.way)


def _by_fastio(source: Path, out: Path, mapping: dict[str, int]) -> Callable[[], tuple[Any, str]]:
    def call() -> tuple[Any, str]:
        with record() as transfers:
            found = consolidate(source, out, mapping)
        return found, catalogue.way(transfers[-1])

    return call


def _by_torch(source: Path, out: Path, mapping: dict[str, int], syncs: bool) -> Callable[[], tuple[Any, str]]:
    from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files

    def call() -> tuple[Any, str]:
        consolidate_safetensors_files(str(source), str(out), mapping)
        for path in out.iterdir() if syncs else ():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        return None, ""

    return call
