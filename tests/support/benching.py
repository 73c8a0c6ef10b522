"""Helpers for the tests of fastio-bench: a fake clock, a folder on a real disk, the command in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fastio_bench.commands import cli
from fastio_bench.machine import disk_limit, machine

MIB = 1 << 20
# The measurements of the disk's limit, as parameters of tests.
LIMITS = [
    pytest.param(
        disk_limit.FioLimit(), marks=pytest.mark.skipif(not disk_limit.fio(), reason="fio is not installed"), id="fio"
    ),
    pytest.param(disk_limit.RingLimit(), id="ring"),
]


class FakeClock:
    """A clock that only moves when a method moves it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.busy = 50.0
        self.taken = 1 << 40

    def wall(self) -> float:
        return self.now

    def cpu(self) -> float:
        return self.busy

    def taken_back(self) -> int:
        return self.taken

    def mover(self, seconds: list[float], cpu_share: float = 1.0) -> Callable[[], str]:
        """A transport whose calls take these times, one after the other."""
        times = iter(seconds)

        def run() -> str:
            took = next(times)
            self.now += took
            self.busy += took * cpu_share
            return "fake"

        return run

    def idle(self) -> None:
        """Pass 100 seconds that a measurement must not count."""
        self.now += 100.0
        self.busy += 100.0


def on_disk(folder: Path) -> Path:
    """Return the folder, or skip the test if it is on tmpfs, whose pages cannot leave the page cache."""
    kind = machine.filesystem(folder).kind
    if kind in ("tmpfs", "ramfs"):
        pytest.skip(f"{folder} is on {kind}; use --basetemp to point to a disk")
    return folder


def invoke(*arguments: str, status: int = 0) -> Result:
    """Run ``fastio-bench`` with these arguments, in this process; fail unless it exits with ``status``."""
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


def processes(session: int) -> list[int]:
    """The PIDs of a session's running processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(path.parent.name))
    return found
