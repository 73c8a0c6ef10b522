"""The number of I/O threads comes from the machine: the process's affinity and the CPU limits of its cgroups."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import warm_python
from fastio import config, processors

Limit = Callable[[str, dict[str, str]], float]


@pytest.fixture
def limit(tmp_path: Path) -> Limit:
    """A function that reads the limit of a made-up tree of cgroups from its files; ``own`` is /proc/self/cgroup."""

    def of(own: str, files: dict[str, str]) -> float:
        for name, text in files.items():
            (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "root" / name).write_text(text)
        (tmp_path / "own").write_text(own)
        return processors.cgroup_limit(str(tmp_path / "root"), str(tmp_path / "own"))

    return of


QUOTA, PERIOD = "cpu.cfs_quota_us", "cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, math.inf),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "400000 100000\n"}, 4),
        ("0::/a/b\n", {"a/b/cpu.max": "200000 100000\n", "a/cpu.max": "400000 100000\n"}, 2),
        ("0::/a/b\n", {"a/b/cpu.max": "800000 100000\n", "cpu.max": "50000 100000\n"}, 0.5),
        ("0::/a\n", {"unified/a/cpu.max": "300000 100000\n"}, 3),
        ("0::/elsewhere\n", {"a/cpu.max": "100000 100000\n"}, math.inf),
        ("0::/../a\n", {"cpu.max": "700000 100000\n"}, 7),
        ("4:memory:/m\n3:cpu,cpuacct:/a\n", {f"cpu/a/{QUOTA}": "250000\n", f"cpu/a/{PERIOD}": "100000\n"}, 2.5),
        ("3:cpu,cpuacct:/\n", {f"cpu,cpuacct/{QUOTA}": "90000\n", f"cpu,cpuacct/{PERIOD}": "30000\n"}, 3),
        ("3:cpu:/host/a\n", {f"cpu/{QUOTA}": "600000\n", f"cpu/{PERIOD}": "100000\n"}, 6),
        ("3:cpu:/\n", {f"cpu/{QUOTA}": "-1\n", f"cpu/{PERIOD}": "100000\n"}, math.inf),
        ("3:cpuset:/\n", {f"cpu/{QUOTA}": "100000\n", f"cpu/{PERIOD}": "100000\n"}, math.inf),
        ("0::/\n", {"cpu.max": "what\n"}, math.inf),
        ("0::/\n", {"cpu.max": "100000 0\n"}, math.inf),
        ("", {"cpu.max": "100000 100000\n"}, math.inf),
    ],
)
def test_limit_of_cgroups(limit: Limit, own: str, files: dict[str, str], expected: float) -> None:
    assert limit(own, files) == expected


def test_a_system_without_cgroups_has_no_limit(tmp_path: Path) -> None:
    assert processors.cgroup_limit(str(tmp_path / "none"), str(tmp_path / "neither")) == math.inf


@pytest.mark.parametrize(
    ("cores", "limit", "expected"), [(1, math.inf, 1), (8, 2.5, 3), (8, 0.1, 1), (2, 4, 2), (96, math.inf, 16)]
)
def test_one_thread_for_each_processor(
    cores: int, limit: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FASTIO_IO_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(processors, "cgroup_limit", lambda: limit)
    assert config.get("io_threads") == expected
    monkeypatch.setenv("FASTIO_IO_THREADS", "100")
    assert config.get("io_threads") == 100


def test_affinity_of_a_process() -> None:
    """It is read each time: a program may change it."""
    code = """
import os
from fastio import config
before = config.get("io_threads")
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(before, config.get("io_threads"))
"""
    environment = {name: text for name, text in os.environ.items() if name != "FASTIO_IO_THREADS"}
    said = warm_python.run(code, environment=environment)
    before, after = map(int, said.stdout.split())
    assert before == min(processors.count(), 16)
    assert after == 1
