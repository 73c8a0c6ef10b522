"""What the tests of fastio-bench share: a clock that only moves when told, and a folder on a real disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fastio_bench.commands import cli
from fastio_bench.machine import disk_limit, machine

MIB = 1 << 20
# What measures the disk's limit, as a test's parameters.
LIMITS = [
    pytest.param(
        disk_limit.FioLimit(), marks=pytest.mark.skipif(not disk_limit.fio(), reason="fio is not installed"), id="fio"
    ),
    pytest.param(disk_limit.RingLimit(), id="ring"),
]


class FakeClock:
    """A clock that stands still until it is told to move."""

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
        """A transport of known speed: its calls take these times, one after the other."""
        times = iter(seconds)

        def run() -> str:
            took = next(times)
            self.now += took
            self.busy += took * cpu_share
            return "fake"

        return run

    def idle(self) -> None:
        """Something slow that must not be counted."""
        self.now += 100.0
        self.busy += 100.0


def on_disk(folder: Path) -> Path:
    """The folder, if pages can be cold there: tmpfs has nowhere else to keep them."""
    kind = machine.filesystem(folder).kind
    if kind in ("tmpfs", "ramfs"):
        pytest.skip(f"{folder} is on {kind}; use --basetemp to point to a disk")
    return folder


def invoke(*arguments: str, status: int = 0) -> Result:
    """``fastio-bench`` with these arguments, in this process."""
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


def processes(session: int) -> list[int]:
    """The processes of a session that are alive."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(path.parent.name))
    return found
