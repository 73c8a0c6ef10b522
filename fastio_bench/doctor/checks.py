"""Checks the machine, the filesystem and the tools for causes of slow saves and loads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastio
import fastio._native as native
from fastio import config
from fastio.inspect.machine_checks import direct_io, gds, io_uring
from fastio_bench.harness import new_memory, room, warmup
from fastio_bench.harness import page_cache as cold
from fastio_bench.harness.memory_reserve import Reserve, available_memory
from fastio_bench.harness.rounds import Contestant, Failure, Sample, Task, interleave
from fastio_bench.machine import disk_limit, machine
from fastio_bench.workloads.objects import MIB, Workload

PROBE_BATCH = 16  # 49 MiB: large enough for every path, small enough for a moment
PROBE_FILES = 3  # two of them are on the disk at once, while a save replaces a file
LIMIT_NBYTES = 512 * MIB
LIMIT_ROUNDS = 5  # about ten seconds

Answers = list[tuple[str, str]]


def system(folder: Path) -> Answers:
    """The machine, the filesystem and the kernel's features, as names and answers."""
    fs = machine.filesystem(folder)
    gpus = machine.gpus()
    found = machine.versions()
    return [
        ("processor", f"{machine.processor()}, {len(os.sched_getaffinity(0))} cores"),
        ("memory", f"{available_memory() / 1e9:.1f} GB available"),
        ("new memory", new_memory.told()),
        ("kernel", machine.describe(folder)["kernel"]),
        ("versions", ", ".join(f"{name} {number}" for name, number in found.items())),
        ("GPU", ", ".join(gpus) or "none that torch sees"),
        ("native module", f"{native.__file__} (CRC-32: {native.crc32_kernel()})"),
        ("dictionaries", str(config.get("dictionary_dir") or "in the user's cache folder")),
        ("filesystem", f"{fs.kind} on {fs.device}, {fs.free_bytes / 1e9:.1f} GB free"),
        ("direct I/O", direct_io(folder)),
        ("io_uring", io_uring()),
        ("page cache", page_cache(folder)),
        ("GPUDirect Storage", gds()),
    ]


def page_cache(folder: Path) -> str:
    """Whether files here can be dropped from the page cache, so that a cold read can be measured."""
    probe = folder / "cached"
    probe.write_bytes(os.urandom(MIB))
    try:
        before = cold.resident(probe)
        try:
            cold.drop(probe)
        except cold.ResidencyError:
            return "files cannot be dropped from it here (tmpfs?): cold reads cannot be measured"
        return f"works: {before:.0%} of a new file was resident, none after it was dropped"
    finally:
        probe.unlink()


def ways(folder: Path, workload: Workload) -> Answers:
    """The actual tool and route of ``policy="auto"`` for a durable save, a save, a cold and a warm load."""
    thing, path = workload.make(), folder / "probe.pt"
    fastio.save(thing, path)  # a process's first call sets up what later ones reuse
    calls: dict[str, Callable[[], Any]] = {
        "durable save": lambda: fastio.save(thing, path),
        "save": lambda: fastio.save(thing, path, durable=False),
        "cold load": lambda: fastio.load(path),
        "warm load": lambda: fastio.load(path),
    }
    rows = []
    try:
        for name, call in calls.items():
            if name == "cold load":
                try:
                    cold.drop(path)
                except cold.ResidencyError as error:
                    rows.append((name, str(error)))
                    continue
            elif name == "warm load":
                cold.warm(path)
            with warmup.ready(Reserve(2 * LIMIT_NBYTES)), fastio.record() as transfers:
                call()
            done = transfers[-1]
            told = "; ".join([done.reason, *map(str, done.fallbacks)])
            rows.append((name, f"{done.tool}, {done.route}, {done.nbytes / done.seconds / 1e6:,.0f} MB/s: {told}"))
    finally:
        path.unlink(missing_ok=True)
    return rows


def limit_nbytes(folder: Path) -> int:
    """The size for measuring the disk's limit: whole MiB, at most half of the free space."""
    return min(LIMIT_NBYTES, room.most(folder, 2) // MIB * MIB)


def disk(folder: Path, rounds: int, nbytes: int) -> Iterator[Sample | Failure]:
    """Time plain direct writes and reads of ``nbytes`` in interleaved rounds. Yields each outcome."""
    path, tool = folder / "limit", disk_limit.find()
    contestants = [
        Contestant("write", lambda: tool.write(path, nbytes), os.sync),
        Contestant("read", lambda: tool.read(path, nbytes), os.sync),
    ]
    try:
        yield from interleave(Task(disk_limit.TOOL, f"{nbytes // MIB} MiB", nbytes), contestants, rounds)
    finally:
        path.unlink(missing_ok=True)
