"""On a full disk: kept files are complete, and no measurement is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import results as made
from benching import MIB, invoke
from disks import tmpfs
from fastio_bench.harness import stats, whole_files
from fastio_bench.harness.rounds import Failure, Sample
from fastio_bench.report import plots
from fastio_bench.tools import live, trace
from fastio_bench.tools.trace import Row

OLD = "of another day"
ROWS = [Row("pt save", 1 << 20, {"a": 0.001, "b": 0.002}) for _ in range(2000)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 2 MiB."""
    with tmpfs(tmp_path / "disk", 2) as folder:
        yield folder


def fill(folder: Path) -> None:
    """Fill the disk to the last byte."""
    (folder / "full").write_bytes(bytes(shutil.disk_usage(folder).free))
    assert shutil.disk_usage(folder).free == 0


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch, small_disk: Path) -> None:
    """Return the timings of two tools at once, after filling the disk."""

    def run(self: live.Comparison, folder: Path) -> Iterator[Row | Failure]:
        yield from ROWS
        fill(small_disk)

    monkeypatch.setattr(live.Comparison, "run", run)


class TestReplacing:
    def test_full_disk_keeps_the_old_file(self, small_disk: Path) -> None:
        path = small_disk / "it"
        path.write_text(OLD)
        fill(small_disk)
        with pytest.raises(OSError, match="No space left"):
            whole_files.write(path, "x" * MIB)
        assert path.read_text() == OLD
        assert sorted(entry.name for entry in small_disk.iterdir()) == ["full", "it"]

    def test_room_is_reserved_and_the_rest_freed(self, small_disk: Path) -> None:
        path = small_disk / "it"
        with whole_files.replacing(path, MIB) as keep:
            fill(small_disk)
            keep(b"y" * (MIB // 2))
        assert path.read_bytes() == b"y" * (MIB // 2)
        with open(small_disk / "more", "wb") as stream:
            stream.write(bytes(MIB // 4))
        with pytest.raises(OSError, match="No space left"), whole_files.replacing(path, MIB):
            raise AssertionError("there is not so much room")
        assert path.stat().st_size == MIB // 2

    def test_link_stays_a_link_and_device_is_written_directly(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "file")
        whole_files.write(tmp_path / "link", "through it")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "file").read_text() == "through it"
        whole_files.write(Path("/dev/null"), "nobody reads it")
        assert Path("/dev/null").is_char_device()
        assert len(list(tmp_path.iterdir())) == 2


class TestReport:
    def test_page_that_does_not_fit_keeps_the_old_one(self, small_disk: Path, tmp_path: Path) -> None:
        made.unknown(tmp_path, "teleport").write(tmp_path)
        path = small_disk / "report.html"
        path.write_text(OLD)
        fill(small_disk)
        said = invoke("report", str(tmp_path), "-o", str(path), status=1).output
        assert f"Error: {path}: the page cannot be written (No space left on device)" in said
        assert path.read_text() == OLD

    def test_plot_that_does_not_fit_leaves_no_file(self, small_disk: Path) -> None:
        fill(small_disk)
        samples = [Sample("save", "tensor-3.0625", "torch", 0, 10**6, 1.0, 1.0)]
        with pytest.raises(OSError, match="No space left"):
            plots.draw(small_disk / "io", stats.summarise(samples))
        assert [entry.name for entry in small_disk.iterdir()] == ["full"]


class TestRecording:
    """``fastio-bench tools --record``, which measures for about an hour before it writes."""

    @staticmethod
    def record(path: Path, folder: Path, *more: str, status: int = 0) -> str:
        arguments = ("tools", "--quick", "--calls", str(len(ROWS)), "--record", str(path), "--dir", str(folder))
        return invoke(*arguments, *more, status=status).output

    def test_disk_filled_during_recording_loses_no_line(
        self, small_disk: Path, measuring: None, tmp_path: Path
    ) -> None:
        path = small_disk / "trace.csv"
        path.write_text(OLD)
        said = self.record(path, tmp_path)
        assert f"written: {path}, {len(ROWS):,} lines" in said
        assert trace.read(path) == ROWS
        assert sorted(entry.name for entry in small_disk.iterdir()) == ["full", "trace.csv"]

    def test_full_disk_is_reported_before_recording(self, small_disk: Path, measuring: None, tmp_path: Path) -> None:
        path = small_disk / "trace.csv"
        path.write_text(OLD)
        fill(small_disk)
        said = self.record(path, tmp_path, status=2)
        assert f"--record {path}: it cannot be written (No space left on device)" in said
        assert " of disk" not in said
        assert path.read_text() == OLD

    def test_unwritable_lines_are_printed(
        self, small_disk: Path, measuring: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As on a filesystem that does not keep reserved room."""
        monkeypatch.setattr(os, "posix_fallocate", lambda *where: None)
        path, copy = small_disk / "trace.csv", tmp_path / "copy.csv"
        path.write_text(OLD)
        said = self.record(path, tmp_path, status=1)
        assert f"--record {path}: OSError: [Errno 28] No space left on device" in said
        lines = said.splitlines()
        first = lines.index("work,nbytes,a,b")
        copy.write_text("\n".join(lines[first : first + 1 + len(ROWS)]))
        assert trace.read(copy) == ROWS
        assert path.read_text() == OLD
