"""On a disk that is really full, files that are kept are whole, and what took long to measure is not lost."""

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
    """Until not one byte more can be written."""
    (folder / "full").write_bytes(bytes(shutil.disk_usage(folder).free))
    assert shutil.disk_usage(folder).free == 0


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch, small_disk: Path) -> None:
    """Timings of two tools that are there at once; meanwhile others fill the disk."""

    def run(self: live.Comparison, folder: Path) -> Iterator[Row | Failure]:
        yield from ROWS
        fill(small_disk)

    monkeypatch.setattr(live.Comparison, "run", run)


class TestReplacing:
    def test_on_a_full_disk_what_was_there_stays(self, small_disk: Path) -> None:
        path = small_disk / "it"
        path.write_text(OLD)
        fill(small_disk)
        with pytest.raises(OSError, match="No space left"):
            whole_files.write(path, "x" * MIB)
        assert path.read_text() == OLD
        assert sorted(entry.name for entry in small_disk.iterdir()) == ["full", "it"]

    def test_room_is_taken_beforehand_and_what_is_not_wanted_given_back(self, small_disk: Path) -> None:
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

    def test_a_link_stays_one_and_a_device_is_written_as_it_is(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "file")
        whole_files.write(tmp_path / "link", "through it")
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "file").read_text() == "through it"
        whole_files.write(Path("/dev/null"), "nobody reads it")
        assert Path("/dev/null").is_char_device()
        assert len(list(tmp_path.iterdir())) == 2


class TestReport:
    def test_a_page_that_does_not_fit_leaves_the_one_of_before(self, small_disk: Path, tmp_path: Path) -> None:
        made.unknown(tmp_path, "teleport").write(tmp_path)
        path = small_disk / "report.html"
        path.write_text(OLD)
        fill(small_disk)
        said = invoke("report", str(tmp_path), "-o", str(path), status=1).output
        assert f"Error: {path}: the page cannot be written (No space left on device)" in said
        assert path.read_text() == OLD

    def test_a_plot_that_does_not_fit_leaves_none(self, small_disk: Path) -> None:
        fill(small_disk)
        samples = [Sample("save", "tensor-3.0625", "torch", 0, 10**6, 1.0, 1.0)]
        with pytest.raises(OSError, match="No space left"):
            plots.draw(small_disk / "io", stats.summarise(samples))
        assert [entry.name for entry in small_disk.iterdir()] == ["full"]


class TestRecording:
    """``fastio-bench tools --record``, which measures for an hour or so before it writes."""

    @staticmethod
    def record(path: Path, folder: Path, *more: str, status: int = 0) -> str:
        arguments = ("tools", "--quick", "--calls", str(len(ROWS)), "--record", str(path), "--dir", str(folder))
        return invoke(*arguments, *more, status=status).output

    def test_a_disk_that_fills_up_meanwhile_loses_no_line(
        self, small_disk: Path, measuring: None, tmp_path: Path
    ) -> None:
        path = small_disk / "trace.csv"
        path.write_text(OLD)
        said = self.record(path, tmp_path)
        assert f"written: {path}, {len(ROWS):,} lines" in said
        assert trace.read(path) == ROWS
        assert sorted(entry.name for entry in small_disk.iterdir()) == ["full", "trace.csv"]

    def test_a_full_disk_is_told_before_anything_is_measured(
        self, small_disk: Path, measuring: None, tmp_path: Path
    ) -> None:
        path = small_disk / "trace.csv"
        path.write_text(OLD)
        fill(small_disk)
        said = self.record(path, tmp_path, status=2)
        assert f"--record {path}: it cannot be written (No space left on device)" in said
        assert " of disk" not in said
        assert path.read_text() == OLD

    def test_lines_that_cannot_be_written_after_all_are_printed(
        self, small_disk: Path, measuring: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As where a filesystem keeps no room that was taken."""
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
