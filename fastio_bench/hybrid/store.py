"""Measures AdamW with its state on disk: equal bits to plain training, and its share of the disk's limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from fastio_bench.hybrid.job import Job, Run, run
from fastio_bench.machine import disk_limit
from fastio_bench.peers.goals import Goal
from fastio_bench.report.table import Cell, ResultTable
from fastio_bench.workloads.objects import MIB

WORK = "optimizer state on disk"
SHARE, BUFFERS = 0.8, 512  # goals: share of the disk's limit; MiB beyond the parameters
_MEMORY_STEPS = 3
_ROUNDS = 3  # rounds of the limit, before training and after


@dataclass(frozen=True)
class Stored:
    """Both ways' runs. ``limit_s``: the seconds of the disk's limit for the bytes that one update writes and reads."""

    plain: Run
    stored: Run
    memory: Run
    limit_s: float
    limit_name: str

    @property
    def update_s(self) -> float:
        """The median of the updates that also read the state, in seconds."""
        return median(self.stored.update_s[1:])

    @property
    def same(self) -> bool:
        """Whether losses, parameters and state are bitwise equal to plain training's."""
        return self.plain.digest == self.stored.digest

    @property
    def share(self) -> float:
        """The share of the disk's limit that it reached."""
        return self.limit_s / self.update_s

    @property
    def beyond_bytes(self) -> int | None:
        """The peak of memory beyond the parameters, including gradients."""
        peak = self.memory.peak_bytes
        return None if peak is None else peak - self.memory.parameter_bytes


def weights(job: Job) -> list[float]:
    """The weights of plain training, training from disk, the memory run, and the limit twice."""
    return [float(job.steps), 2.0 * job.steps, 4.0 * _MEMORY_STEPS, 2.0, 2.0]


def measure(job: Job, folder: Path, tell: Callable[[str, float], None]) -> Stored:
    """Train plainly, then with the state below ``folder``, each in a fresh process. Raises ChildError."""
    plain_weight, stored_weight, memory_weight, first_weight, last_weight = weights(job)
    tell("plain training", 0)
    plain = run(job)
    tell("the optimizer's state on disk", plain_weight)
    place = folder / "state"
    place.mkdir()
    here = replace(job, store=str(place))
    disk = disk_limit.find()
    nbytes = 2 * plain.parameter_bytes
    seconds = list(_limits(disk, folder, nbytes))
    tell("the optimizer's state on disk", first_weight)
    stored = run(here)
    tell("the disk's limit", stored_weight)
    seconds += _limits(disk, folder, nbytes)
    tell("its peak of memory", last_weight)
    memory = run(replace(here, steps=_MEMORY_STEPS, exact_memory=True))
    tell("its peak of memory", memory_weight)
    written, read = stored.moved[-1]
    write_s, read_s = median(one for one, _ in seconds), median(one for _, one in seconds)
    return Stored(plain, stored, memory, write_s * written / nbytes + read_s * read / nbytes, disk.name)


def table(job: Job, found: Stored) -> ResultTable:
    """The table of both ways."""
    written, read = found.stored.moved[-1]
    beyond = found.beyond_bytes
    rows: list[list[Cell]] = [
        ["plain", median(found.plain.update_s[1:]) * 1e3, None, None, None, "-", _mib(found.plain.peak_bytes)],
        [
            "on disk",
            found.update_s * 1e3,
            (written + read) / 1e6,
            (written + read) / found.update_s / 1e6,
            100 * found.share,
            "yes" if found.same else "NO",
            _mib(found.memory.peak_bytes),
        ],
    ]
    note = (
        f"{found.plain.parameter_bytes / 1e9:.2f} GB of parameters, AdamW (fused), {job.steps} steps; the median of "
        f"updates from the second on. Limit: {found.limit_name}, writing, then reading as many bytes. Peak: resident "
        f"memory above the process without a model, on disk with freed blocks given back at once"
    )
    if beyond is not None:
        note += f", {beyond / MIB:,.0f} MiB beyond the parameters; gradients there are pages of a file"
    columns = ("way", "update ms*", "moved MB*", "MB/s*", "% of the limit*", "same bits", "peak MiB*")
    return ResultTable("hybrid-optimizer-store", "AdamW with its state on disk", columns, rows, note=note)


def goals(job: Job, found: Stored) -> Iterable[Goal]:
    """The goals."""
    name = f"{found.plain.parameter_bytes / 1e9:.2f} GB, {job.steps} steps"
    yield Goal(WORK, name, "plain training's bits", 1.0, float(found.same), "equal")
    yield Goal(WORK, name, disk_limit.TOOL, SHARE, found.share)
    if found.beyond_bytes is not None:
        yield Goal(WORK, name, "memory beyond the parameters", BUFFERS, found.beyond_bytes / MIB, "MiB", least=False)


def _limits(disk: disk_limit.Limit, folder: Path, nbytes: int) -> Iterable[tuple[float, float]]:
    path = folder / "limit"
    try:
        for _ in range(_ROUNDS):
            yield disk.write(path, nbytes).seconds, disk.read(path, nbytes).seconds
    finally:
        path.unlink(missing_ok=True)


def _mib(nbytes: int | None) -> float | None:
    return None if nbytes is None else nbytes / MIB
