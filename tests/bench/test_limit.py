"""The limits of disk and memory: the bytes that they move, and the files that they read."""

from __future__ import annotations

import json
import os
import resource
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benching import LIMITS, MIB, on_disk
from fastio_bench.harness import page_cache, stats
from fastio_bench.harness.rounds import Failure, Measured, Sample
from fastio_bench.io import sweep
from fastio_bench.machine import disk_limit, limit_tables, memory_limit
from fastio_bench.peers import catalogue, compare
from fastio_bench.workloads import objects


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return on_disk(tmp_path)


@pytest.mark.parametrize("tool", LIMITS)
def test_moves_the_stated_bytes(tool: disk_limit.Limit, disk: Path) -> None:
    path = disk / "limit"
    for measured in (tool.write(path, 9 * MIB + 1), tool.read(path, 9 * MIB + 1)):
        assert measured.seconds > 0
        assert measured.way.startswith(tool.name)
    assert path.stat().st_size > 9 * MIB
    assert page_cache.resident(path) == 0


@pytest.fixture
def heard(disk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What fio said last is kept in this file; it fails as fio 3.33 does at an option that "refused" names."""
    real, folder = shutil.which("fio"), disk / "bin"
    if real is None:
        pytest.skip("fio is not installed")
    folder.mkdir()
    script = f"""#!/bin/sh
    if [ -e {folder}/refused ] && printf '%s\\n' "$@" | grep -qxf {folder}/refused; then
        echo "fio: error=Cannot allocate memory"; echo "{{"; echo "}}"; exit 1
    fi
    {real} "$@" | tee {folder}/heard
    """
    (folder / "fio").write_text(script)
    (folder / "fio").chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "heard"


def faults(heard: Path) -> int:
    said = heard.read_text()
    return int(json.loads(said[said.index("{") :])["jobs"][0]["minf"])


def test_fio_reads_into_resident_memory(heard: Path, disk: Path) -> None:
    """Else it would fault in its 64 MiB of buffers while it reads."""
    path, tool = disk / "limit", disk_limit.FioLimit()
    assert "8 x 4 MiB" in tool.write(path, 72 * MIB).way
    assert faults(heard) < 100
    tool.overwrite(path, 72 * MIB)
    assert faults(heard) < 100
    measured = tool.read(path, 72 * MIB)
    if "not registered" in measured.way:
        pytest.skip(measured.way)
    assert faults(heard) < 100
    assert measured.way == "fio, io_uring, direct, 64 x 1 MiB"


def test_fio_without_registered_memory_reads_and_says_so(heard: Path, disk: Path) -> None:
    (heard.parent / "refused").write_text("--fixedbufs\n")
    path, tool = disk / "limit", disk_limit.FioLimit()
    tool.write(path, 72 * MIB)
    for _ in range(2):
        way = tool.read(path, 72 * MIB).way
        assert "not registered, fio ended with status 1 and said: fio: error=Cannot allocate memory;" in way
        assert ("faulted in while timed" in way) is (faults(heard) > 100)


@pytest.mark.parametrize("tool", LIMITS)
def test_read_leaves_the_file_unchanged(tool: disk_limit.Limit, disk: Path) -> None:
    """A file that is not a multiple of a block: it is only dropped from the page cache."""
    path, content = disk / "their:file", os.urandom(3 * MIB + 4321)  # fio separates names by colons
    path.write_bytes(content)
    path.chmod(0o400)
    before = path.stat()
    assert tool.read(path, 3 * MIB + 4321).seconds > 0
    assert page_cache.resident(path) == 0
    after = path.stat()
    assert (after.st_mtime_ns, after.st_size, after.st_ino) == (before.st_mtime_ns, before.st_size, before.st_ino)
    assert path.read_bytes() == content


@pytest.mark.parametrize("tool", LIMITS)
def test_missing_file_raises(tool: disk_limit.Limit, disk: Path) -> None:
    with pytest.raises(FileNotFoundError):
        tool.read(disk / "missing", MIB)
    (disk / "short").write_bytes(b"x")
    with pytest.raises(ValueError, match="no block"):
        tool.read(disk / "short", MIB)


@pytest.mark.parametrize("tool", LIMITS)
def test_failed_write_leaves_no_file(tool: disk_limit.Limit, disk: Path) -> None:
    path = disk / "limit"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 * MIB, before[1]))
    try:
        with pytest.raises(OSError, match=r"File too large|fio ended with status"):
            tool.write(path, 9 * MIB)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with pytest.raises(FileNotFoundError):
        tool.read(path, 9 * MIB)


class Noting:
    """A limit that records its files, and whether fastio loads them."""

    name = "noting"

    def __init__(self) -> None:
        self.read_files: list[tuple[str, int]] = []

    def write(self, path: Path, nbytes: int) -> Measured:
        path.write_bytes(bytes(nbytes))
        return Measured(1.0, 0.0, way=self.name)

    def read(self, path: Path, nbytes: int) -> Measured:
        self.read_files.append((path.name, path.stat().st_ino))
        return Measured(1.0, 0.0, way=self.name)


def test_cold_limit_reads_the_file_that_fastio_loads(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noting = Noting()
    monkeypatch.setattr(disk_limit, "find", lambda: noting)
    monkeypatch.setattr(disk_limit, "fio", lambda: False)
    loaded: list[tuple[str, int]] = []
    drop = page_cache.drop

    def measure(job: object, *_: object) -> Measured:
        path = Path(getattr(job, "path"))  # noqa: B009
        drop(path)
        loaded.append((path.name, path.stat().st_ino))
        return Measured(1.0, 0.0)

    monkeypatch.setattr("fastio_bench.harness.fresh_process.measure", measure)
    workload = replace(objects.one_tensor(1), large=True)
    plan = compare.Comparison(
        disk,
        2,
        [workload],
        [catalogue.find("torch"), catalogue.find("fastio")],
        (compare.COLD,),
        learning=1,
        memory=False,
    )
    outcomes = list(plan.run())
    assert not [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    assert [o.tool for o in outcomes if isinstance(o, Sample)] == ["torch", "fastio", disk_limit.TOOL] * 2
    ours = {file for file in loaded if file[0] == "of-fastio"}
    assert set(noting.read_files) == ours
    assert len(loaded) == 4


def test_fio_and_our_ring_are_compared_once(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_limit, "fio", lambda: True)
    large = [objects.one_tensor(64), objects.one_tensor(128), objects.one_tensor(1)]
    plan = compare.Comparison(disk, 1, large, [catalogue.find("torch")])
    told = {(step.workload.nbytes // MIB, step.work): step.limits for step in plan.steps if step.limits}
    both, one, memory = (disk_limit.TOOL, disk_limit.RING), (disk_limit.TOOL,), (memory_limit.TOOL,)
    assert told == {
        (196, compare.DURABLE): both,
        (196, compare.COLD): both,
        (196, compare.WARM): memory,
        (392, compare.DURABLE): one,
        (392, compare.COLD): one,
        (392, compare.WARM): memory,
    }
    monkeypatch.setattr(disk_limit, "fio", lambda: False)
    plan = compare.Comparison(disk, 1, large, [catalogue.find("torch")])
    assert {step.limits for step in plan.steps} == {(), one, memory}


def test_warm_limit_copies_the_loaded_file(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastio_bench.harness.fresh_process.measure", lambda *_: Measured(1.0, 0.0))
    real, copied = os.preadv, set[tuple[str, int, int]]()

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        count = real(fd, [buffer[:MIB] for buffer in buffers], offset)  # less than asked for
        copied.add((Path(os.readlink(f"/proc/self/fd/{fd}")).name, offset, count))
        return count

    monkeypatch.setattr(os, "preadv", preadv)
    workload = replace(objects.one_tensor(1), large=True)
    plan = compare.Comparison(
        disk,
        2,
        [workload],
        [catalogue.find("torch"), catalogue.find("fastio")],
        (compare.WARM,),
        learning=1,
        memory=False,
    )
    outcomes = list(plan.run())
    assert not [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    measured = [o for o in outcomes if isinstance(o, Sample) and o.tool == memory_limit.TOOL]
    assert [sample.way.partition(",")[0] for sample in measured] == ["page cache into new memory"] * 2
    copied = {copy for copy in copied if copy[0] != "learning"}
    assert {name for name, _, _ in copied} == {"of-fastio"}
    end = 0
    for _, offset, count in sorted(copied):
        assert offset == end
        end += count
    assert end > workload.nbytes


def test_sweep_limit_reads_the_file_of_most_tools(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noting = Noting()
    monkeypatch.setattr(disk_limit, "find", lambda: noting)
    monkeypatch.setattr("fastio_bench.harness.fresh_process.measure", lambda *_: Measured(1.0, 0.0))
    tools = [catalogue.find(f"{catalogue.TOOL}{name}") for name in ("torch", "posix", "uring")]
    monkeypatch.setattr(sweep, "_LEAST_LIMITED", MIB)
    outcomes = list(sweep.Sweep(disk, 1, [objects.one_tensor(1)], tools).run())
    assert not [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    assert [name for name, _ in noting.read_files] == [f"of-{catalogue.find('tool:uring').owner}"]
    limited = [o.work for o in outcomes if isinstance(o, Sample) and o.tool == disk_limit.TOOL]
    assert limited == [sweep.DURABLE, sweep.COLD]


def test_limit_table_has_fastios_share(disk: Path) -> None:
    def samples(tool: str, way: str, *seconds: float) -> list[Sample]:
        return [
            Sample("cold load", "big", tool, number, 10**9, took, 0.1, way=way) for number, took in enumerate(seconds)
        ]

    told = [*samples(disk_limit.TOOL, "fio", 0.4, 0.5, 0.8), *samples(disk_limit.RING, "ring", 0.25, 0.25, 0.25)]
    (table,) = limit_tables.limits(
        stats.summarise([*told, *samples("fastio", "uring", 0.5, 0.5, 1.0), *samples("torch", "", 2.0)]), {"big": "Big"}
    )
    assert [list(row) for row in table.rows] == [
        ["cold load", "Big", "fio", 2000.0, 2500.0, 100.0, 80.0],
        ["cold load", "Big", "ring", 4000.0, 4000.0, 50.0, 50.0],
        ["cold load", "Big", "fastio", 2000.0, 2000.0, None, None],
    ]
    assert not limit_tables.limits(stats.summarise(samples("fastio", "uring", 0.5)), {})
    (table,) = limit_tables.limits(
        stats.summarise([*samples(memory_limit.TOOL, "copied", 0.5), *samples("fastio", "posix", 0.625)]), {}
    )
    assert list(table.rows[0]) == ["cold load", "big", "copied", 2000.0, 2000.0, 80.0, 80.0]
