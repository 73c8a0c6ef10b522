"""docs/performance.md: the papers' figures as they are printed, ours beside them, and the same bytes every time."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import results as made
from fastio.bench import markdown, papers
from fastio.bench.documents import read_folder
from fastio.bench.exhibit import PAPER, SIMULATED, Exhibit
from fastio.bench.performance_docs import citations, main, render
from fastio.bench.report import Report


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A document with tables for two papers, and one that is simulated."""
    folder = tmp_path / "results"
    report = Report("io", tmp_path, {"rounds": 1, "tools": {"uring": "", "posix": "threads: 2"}})
    report.exhibits += [
        Exhibit("a", "Warm read, MB/s", ("size MiB*", "a|b*"), [["1,568", 1234.6]], source="Fastensor, table 2"),
        Exhibit("b", "Elsewhere", ("way", "x*"), [["ours", 2.5]], SIMULATED, "MemFerry, figures 9-13"),
        Exhibit("c", "Theirs again", ("model", "s*"), [["AlexNet", 0.6636]], PAPER, "Fastensor, table 9"),
    ]
    report.notes.append("left out: <nothing>")
    report.write(folder)
    return folder


class TestDocument:
    def test_the_same_results_give_the_same_bytes(self, results: Path, tmp_path: Path) -> None:
        moved = tmp_path / "moved"
        shutil.copytree(results, moved)
        first, second = tmp_path / "docs" / "first.md", tmp_path / "second.md"
        command = [sys.executable, "-m", "fastio.bench.performance_docs", str(results), str(first)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        main([str(moved), str(second)])
        assert first.read_bytes() == second.read_bytes()
        assert str(tmp_path) not in first.read_text()

    def test_ours_stands_beside_theirs(self, results: Path) -> None:
        chapters = dict(part.split("\n", 1) for part in render(read_folder(results)).split("\n## ")[1:])
        reading = chapters["Reading what the page cache holds"]
        assert reading.index("measured here, `fastio-bench io`, cf. Fastensor, table 2") < reading.index(
            "from the paper"
        )
        assert "| 1,568 | 1,235 |" in reading
        assert "a\\|b" in reading
        assert "| 1,568 | 1,940.21 | 2,181 | 2,417.51 | 924.84 | 1,184.21 |" in reading
        hybrid = chapters["Parameters and gradients in host memory"]
        assert "(simulated, `fastio-bench io`, cf. MemFerry, figures 9-13)" in hybrid
        assert "Not in these results: `fastio-bench model --out DIR` measures it." in chapters["Models"]
        assert "&lt;nothing&gt;" in chapters["How it was measured"]

    def test_a_papers_table_stands_there_once(self, results: Path) -> None:
        text = render(read_folder(results))
        assert "Theirs again" not in text
        for exhibit in papers.exhibits():
            assert text.count(markdown.table(exhibit)) == 1, exhibit.name

    def test_of_several_runs_of_a_command_each_table_says_which_it_is_of(self, results: Path, tmp_path: Path) -> None:
        report = made.offloaded(tmp_path)
        report.write(results)
        (results / "offload.json").rename(results / "offload-deep.json")
        alone = render(read_folder(results))
        assert "**Goals** (measured here, `fastio-bench offload`)" in alone
        report.write(results)
        text = render(read_folder(results))
        headings = [line for line in text.splitlines() if line.startswith("**") and "(measured here, `" in line]
        assert len(headings) == len(set(headings))
        for title in ("Goals", "Ways to train"):
            for run in ("offload", "offload (offload-deep)"):
                assert f"**{title}: {run}** (measured here, `fastio-bench offload`)" in headings

    def test_a_chapter_without_anything_says_what_would_measure_it(self, results: Path) -> None:
        text = render(read_folder(results))
        for title, command in (("Checkpoints", "checkpoint"), ("The machine and its disk", "doctor")):
            missing = f"Not in these results: `fastio-bench {command} --out DIR` measures it."
            assert f"## {title}\n\n{missing}\n" in text

    def test_commands_nobody_knows_have_a_chapter(self, results: Path, tmp_path: Path) -> None:
        made.unknown(tmp_path, "teleport").write(results)
        text = render(read_folder(results))
        assert "## teleport" in text
        assert "; the run was interrupted" in text

    def test_a_damaged_folder_is_said_on_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "odd.json").write_text("{")
        with pytest.raises(SystemExit, match=r"odd\.json: cannot be read as JSON"):
            main([str(tmp_path), str(tmp_path / "never.md")])
        assert not (tmp_path / "never.md").exists()

    def test_the_committed_one_has_the_papers_tables_of_today(self, repository: Path) -> None:
        text = (repository / "docs" / "performance.md").read_text()
        for exhibit in papers.exhibits():
            assert markdown.table(exhibit) in text, f"{exhibit.name}: run make bench-docs"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("Fastensor, table 2", {("Fastensor", "table", 2)}),
        ("Fastensor, tables 5-6 and 9", {("Fastensor", "table", number) for number in (5, 6, 9)}),
        ("FlashNeuron, figure 12 and section 4.3.1", {("FlashNeuron", "figure", 12)}),
        ("Fastensor, section 5.2.3, table 13; vDNN, figure 11", {("Fastensor", "table", 13), ("vDNN", "figure", 11)}),
        ("the measure of the tuner; Fastensor reaches 79.6 to 89.2 %", set()),
    ],
)
def test_what_a_source_cites(source: str, found: set[tuple[str, str, int]]) -> None:
    assert citations(source) == found


class TestPapers:
    """What the papers say of their own tables must follow from what was copied."""

    def rows(self, name: str) -> list[list[float]]:
        (found,) = [exhibit for exhibit in papers.exhibits() if exhibit.name == name]
        assert found.origin == PAPER
        assert citations(found.source)
        return [[cell if isinstance(cell, (int, float)) else 0.0 for cell in row[1:]] for row in found.rows]

    def best(self, name: str, column: int) -> float:
        """The share of cases in which the tool of that column was the best."""
        (found,) = [exhibit for exhibit in papers.exhibits() if exhibit.name == name]
        tools = {"pt": 1, "npy": 2, "cpy": 3}
        counts = [int(str(row[tools[str(row[column])]])) for row in found.rows]
        return sum(counts) / sum(int(str(row[place])) for row in found.rows for place in (1, 2, 3))

    def test_every_row_is_as_long_as_its_head(self) -> None:
        for exhibit in papers.exhibits():
            assert {len(row) for row in exhibit.rows} == {len(exhibit.columns)}
        assert len({exhibit.name for exhibit in papers.exhibits()}) == len(papers.exhibits())

    def test_io_efficiency_is_bandwidth_over_utilisation(self) -> None:
        for row in [*self.rows("fastensor-5"), *self.rows("fastensor-6")]:
            assert row[2] == pytest.approx(row[1] / row[0], rel=0.002)
            assert row[4] == pytest.approx(row[3] / row[0], rel=0.002)

    def test_speedups(self) -> None:
        saved = {row[0]: row for row in self.rows("fastensor-9")}
        assert saved[2411][3] / saved[2411][2] == pytest.approx(5.37, abs=0.005)  # torch over kvikio
        write = self.rows("fastensor-4")
        assert max(kvikio / torch for kvikio, torch, _ in write) == pytest.approx(3.38, abs=0.08)
        for plain, best, ratio, most, most_ratio in self.rows("flashneuron-3"):
            assert best / plain == pytest.approx(ratio)
            assert most / plain == pytest.approx(most_ratio)

    def test_shares_of_the_best_tool(self) -> None:
        """As printed: three cells of which are misprints, as the notes say."""
        assert self.best("fastensor-13", 4) == pytest.approx(0.7959, abs=0.02)
        assert self.best("fastensor-13", 5) == pytest.approx(0.8852, abs=0.02)
        assert self.best("fastensor-14", 5) == pytest.approx(0.8922, abs=0.07)
