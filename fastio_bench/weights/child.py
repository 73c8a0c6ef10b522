"""One work of one tool in a fresh process: prints its time, its first tensor's, its peak of memory, what was read."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fastio_bench.harness import page_cache
from fastio_bench.harness.memory_reserve import Reserve
from fastio_bench.harness.timing import timed
from fastio_bench.weights import models, ways
from fastio_bench.workloads.objects import fingerprint

_WRITES = (ways.SAVE, ways.CONVERT)


class Job(NamedTuple):
    """``folder`` holds the model's files. ``state`` is ``cold`` or ``warm``; a save has none. ``target``: of a save
    or a conversion."""

    tool: str
    work: str
    state: str
    model: str
    nbytes: int
    folder: str
    target: str = ""


def main(text: str) -> None:
    """Run a job, given and answered in JSON."""
    job = Job(*json.loads(text))
    print(json.dumps(run(job)))
    sys.stdout.flush()
    os._exit(0)  # freeing the model's memory takes as long as a load


def run(job: Job) -> dict[str, Any]:
    """Do the work, and compare what it gave with what was saved. RuntimeError if they differ."""
    ways.ready(job.tool)
    torch.set_grad_enabled(False)
    model, folder = models.find(job.model, job.nbytes), Path(job.folder)
    way = ways.WAYS[job.work][job.tool]
    is_module = job.work in (ways.INTO, ways.SAVE)
    module = models.module(model) if is_module else None
    if job.work == ways.SAVE:
        assert module is not None
        for name, tensor in models.tensors(model).items():
            module.get_parameter(name).copy_(tensor)
    suffix = ".bin" if job.tool == "torch, mmap" or job.work == ways.CONVERT else ".safetensors"
    files = ways.shards(folder, suffix)
    for path in files:
        (page_cache.drop if job.state == "cold" else page_cache.warm)(path)
    with Reserve(2 * model.nbytes):
        pass
    for path in files if job.state else ():
        page_cache.check(path, job.state)
    at = Path(job.target) if job.work in _WRITES else folder
    given = folder if job.work == ways.CONVERT else module
    before = _read_bytes()
    held = 0 if is_module or job.work in _WRITES else _wanted(job, model)
    began = time.perf_counter()
    found, measured = timed(lambda: (way(model, at, given), ""), held=held)
    answer: dict[str, Any] = {"seconds": measured.seconds, "cpu": measured.cpu_seconds, "extra": measured.extra_bytes}
    answer["read"] = _read_bytes() - before
    answer["taken_back"] = measured.taken_back
    if isinstance(found, dict) and "first" in found:
        answer["first"] = found.pop("first") - began
    _check(job, model, found, at)
    return answer


def _wanted(job: Job, model: models.Model) -> int:
    if job.work == ways.SMALL:
        return 0
    return model.nbytes // models.RANKS if job.work == ways.SLICES else model.nbytes


def _check(job: Job, model: models.Model, found: Any, at: Path) -> None:
    expected = models.tensors(model)
    if job.work == ways.SLICES:
        expected = {name: value[models.part(name, model.shapes[name], 1)] for name, value in expected.items()}
    elif job.work == ways.SMALL:
        expected = {model.small: expected[model.small]}
    elif job.work in _WRITES:
        from safetensors.torch import load_file

        found = {name: tensor for path in ways.shards(at) for name, tensor in load_file(path).items()}
    if job.work == ways.INTO:
        found = dict(found.named_parameters())
    if fingerprint(found) != fingerprint(expected):
        raise RuntimeError(f"{job.tool} gave something else than was saved")


def _read_bytes() -> int:
    """The bytes that this process had read from the disk."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    return 0


if __name__ == "__main__":
    main(sys.argv[1])
