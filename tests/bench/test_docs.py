"""What `make bench-docs` writes: its chapters and tables, reproducible bytes, and the papers' figures."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

import results as made
from fastio_bench.harness.rounds import Failure, Sample
from fastio_bench.harness.run_record import Report
from fastio_bench.harness.stats import summarise
from fastio_bench.papers import answers, figures, offload_simulated
from fastio_bench.papers.performance_docs import citations, main, render
from fastio_bench.report import markdown, summary_tables
from fastio_bench.report.documents import read_folder
from fastio_bench.report.table import PAPER, SIMULATED, ResultTable


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A document with tables for two papers, one of them simulated."""
    folder = tmp_path / "results"
    report = Report("io", tmp_path, {"rounds": 1, "tools": {"uring": "", "posix": "threads: 2"}})
    report.tables += [
        ResultTable("a", "Warm read, MB/s", ("size MiB*", "a|b*"), [["1,568", 1234.6]], source="Fastensor, table 2"),
        ResultTable("b", "Elsewhere", ("way", "x*"), [["ours", 2.5]], SIMULATED, "MemFerry, figures 9-13"),
        ResultTable("c", "Theirs again", ("model", "s*"), [["AlexNet", 0.6636]], PAPER, "Fastensor, table 9"),
    ]
    report.notes.append("left out: <nothing>")
    report.write(folder)
    return folder


class TestDocument:
    def test_same_results_give_the_same_bytes(self, results: Path, tmp_path: Path) -> None:
        moved = tmp_path / "moved"
        shutil.copytree(results, moved)
        first, second = tmp_path / "docs" / "first.md", tmp_path / "second.md"
        command = [sys.executable, "-m", "fastio_bench.papers.performance_docs", str(results), str(first)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        main([str(moved), str(second)])
        assert first.read_bytes() == second.read_bytes()
        assert str(tmp_path) not in first.read_text()

    def test_chapter_has_our_table_and_the_papers(self, results: Path) -> None:
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

    def test_papers_table_appears_once(self, results: Path) -> None:
        text = render(read_folder(results))
        assert "Theirs again" not in text
        for table in figures.tables():
            assert text.count(markdown.table(table)) == 1, table.name

    def test_tables_name_their_run_if_a_command_has_several(self, results: Path, tmp_path: Path) -> None:
        report = made.offloaded(tmp_path)
        report.mode = "deep"
        report.write(results)
        alone = render(read_folder(results))
        assert "**Goals** (measured here, `fastio-bench offload`)" in alone
        report.mode = ""
        report.write(results)
        text = render(read_folder(results))
        headings = [line for line in text.splitlines() if line.startswith("**") and "(measured here, `" in line]
        assert len(headings) == len(set(headings))
        for title in ("Goals", "Ways to train"):
            for run in ("offload", "offload (offload-deep)"):
                assert [one for one in headings if one.startswith(f"**{title}: {run}** (measured here, `fastio-bench")]

    def test_empty_chapter_names_the_command_to_run(self, results: Path) -> None:
        text = render(read_folder(results))
        for title, command in (("Checkpoints", "checkpoint"), ("The machine and its disk", "doctor")):
            missing = f"Not in these results: `fastio-bench {command} --out DIR` measures it."
            assert f"## {title}\n\n{missing}\n" in text

    def test_lists_peers_with_figures_and_absent_ones(self, results: Path, tmp_path: Path) -> None:
        took_part = ("torch", "safetensors", "DCP", "fastio")
        tools = dict.fromkeys((*took_part, "torch, no CRC", "DeepNVMe", "numpy"), "")
        report = Report("peers", tmp_path, {"quick": True, "tools": tools})
        report.samples += [Sample("cold load", "bert", tool, 0, 10**9, 0.5, 0.1) for tool in took_part]
        report.failures.append(Failure("cold load", "bert", "DeepNVMe", 0, "not installed", refused=True))
        report.tables += summary_tables.sides(summarise(report.samples), report.failures)
        report.write(results)
        text = render(read_folder(results))
        chapter = text.partition("## Beside what one would use instead\n")[2].partition("\n## ")[0]
        for tool in took_part:
            assert f"| {tool} | 2,000 (1.00) |" in chapter
        absent = chapter.partition("**Peers without a figure in this run**")[2]
        assert "| DeepNVMe | not installed |" in absent
        assert "| numpy | the run ended before it |" in absent
        for tool in ("DALI", "fastsafetensors", "runai-model-streamer", "torchsnapshot", "TensorNVMe"):
            assert f"| {tool} | not asked for (--quick) |" in absent
        assert not [tool for tool in took_part if f"| {tool} |" in absent]
        assert "no CRC" not in absent

    def test_unknown_command_gets_a_chapter(self, results: Path, tmp_path: Path) -> None:
        made.unknown(tmp_path, "teleport").write(results)
        text = render(read_folder(results))
        assert "## teleport" in text
        assert "; the run was interrupted" in text

    def test_joint_tables_have_rows_of_both_origins(self, results: Path, tmp_path: Path) -> None:
        made.imagined(tmp_path).write(results)
        report = made.offloaded(tmp_path)
        report.settings |= {"depth": 4, "width": 256, "batch": 64, "host_budget": 128 << 20}
        report.findings["depths"] = [{"way": "plain", "depth": 8, "fails_at": 9, "reason": "too deep"}]
        report.findings["depths"].append({"way": "all", "depth": 100, "fails_at": 0, "reason": ""})
        report.findings["calibrated"] = {"rows": [asdict(one) for one in offload_simulated.calibrated()]}
        report.write(results)
        made.chosen(tmp_path).write(results)
        text = render(read_folder(results))
        trained = "| measured here | tiny, depth 4, width 256, batch 64, host memory 128 MiB first | all |"
        for row in (
            f"{trained} 2.00 | - | 12.5 |",  # torch.save's way took no part
            "| from the paper | BERT, batch 64 | Fastensor\\_wr | 33.1 | 0.780 | 74.0 |",
            "| from the paper | ViT-H/14, batch 960 | Torch | - | 1.00 | - |",  # plain: OOM
            "| measured here | CNN on digits, 2 seeds | all, fp16 | 0.850 | 0.850 | 0 | 7.07 |",
            "| from the paper | BERT, batch 2,048 | Fastensor\\_wr | 0.909 | 0.911 | 0.230 | - |",
            "| measured here | vit | posix alone | 1.25 |",
            "| from the paper | a toy model | DALI | 90.3 |",
            f"{trained} 8 | 100 | 12.5 |",
            "| from the paper | ViT-H/14, batch 64 | Fastensor\\_wr | 32.0 | 1,000 | 31.2 |",
            "| simulated | VGG-16, flashneuron | 1.09 | 2.39 |",
            "| 160 | 100 | 100 | 100 |",  # simulated throughput: it begins to fall
            "| 256 | - | 61.6 | 86.9 |",
            "| calibrated | BERT-XLarge | 3.00 | - |",
            "| from the paper | BERT-XLarge | 3.00 | 14.0 |",
        ):
            assert row in text, row
        for source in ("Fastensor, tables 10-11", "Fastensor, table 8", "Fastensor, table 12", "FlashNeuron, table 3"):
            assert f"(each row says whose, cf. {source})" in text

    def test_papers_table_names_missing_answers(self, results: Path, tmp_path: Path) -> None:
        """Not repeated for each table if the chapter has it; but what needs a GPU is always named."""
        gpu = "Needs a GPU: steps and memory of the GPU, "
        gpu += "`python -m fastio_bench.offload.gpu_offload --dir DIR --out DIR`."
        after = dict(
            re.findall(r"\*\*.*from the paper, (.*)\)\n\n(?:\|.*\n)+\n.*\n\n(.*)", render(read_folder(results)))
        )
        assert after["Fastensor, table 10"] == gpu
        assert after["Fastensor, table 6"] == "Needs a GPU: GPU utilisation, `fastio-bench io --device cuda --out DIR`."
        assert not after["vDNN, figure 11"].startswith("Not in these results")
        made.offloaded(tmp_path).write(results)
        after = dict(
            re.findall(r"\*\*.*from the paper, (.*)\)\n\n(?:\|.*\n)+\n.*\n\n(.*)", render(read_folder(results)))
        )
        accuracy = "Not in these results: accuracy, `fastio-bench offload --accuracy --out DIR`."
        assert after["Fastensor, table 10"] == f"{accuracy} {gpu}"
        assert "bandwidth of the GPU's memory (nothing of fastio-bench measures it)" in after["vDNN, figure 13"]

    def test_every_papers_table_has_answers(self) -> None:
        assert set(answers.ANSWERS) == {table.name for table in figures.tables()}

    def test_damaged_document_exits_with_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "odd.json").write_text("{")
        with pytest.raises(SystemExit, match=r"odd\.json: cannot be read as JSON"):
            main([str(tmp_path), str(tmp_path / "never.md")])
        assert not (tmp_path / "never.md").exists()


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
def test_citations_parses_sources(source: str, found: set[tuple[str, str, int]]) -> None:
    assert citations(source) == found


class TestPapers:
    """The statements in the papers' texts must follow from the copied tables."""

    def rows(self, name: str) -> list[list[float]]:
        (found,) = [table for table in figures.tables() if table.name == name]
        assert found.origin == PAPER
        assert citations(found.source)
        return [[cell if isinstance(cell, (int, float)) else 0.0 for cell in row[1:]] for row in found.rows]

    def best(self, name: str, column: int) -> float:
        """The share of cases in which the tool of that column was the best."""
        (found,) = [table for table in figures.tables() if table.name == name]
        tools = {"pt": 1, "npy": 2, "cpy": 3}
        counts = [int(str(row[tools[str(row[column])]])) for row in found.rows]
        return sum(counts) / sum(int(str(row[place])) for row in found.rows for place in (1, 2, 3))

    def test_rows_match_their_columns(self) -> None:
        for table in figures.tables():
            assert {len(row) for row in table.rows} == {len(table.columns)}
        assert len({table.name for table in figures.tables()}) == len(figures.tables())

    def test_io_efficiency_is_bandwidth_over_utilisation(self) -> None:
        for row in [*self.rows("fastensor-5"), *self.rows("fastensor-6")]:
            assert row[2] == pytest.approx(row[1] / row[0], rel=0.002)
            assert row[4] == pytest.approx(row[3] / row[0], rel=0.002)

    def test_training_figures_match_the_papers_text(self) -> None:
        """Speed over torch in %, depth, and table 1's split of torch's time."""
        bert, vit, deep = (self.rows(f"fastensor-{number}") for number in (10, 11, 12))
        writing, best, torch = bert[1], bert[2], bert[4]
        assert [100 * (1 - best[at] / torch[at]) for at in (0, 3)] == pytest.approx([22.02, 58.62], abs=0.01)
        assert 100 * (1 - writing[6] / torch[6]) == pytest.approx(60.36, abs=0.01)  # Fastensor_w's, as the note says
        assert 100 * (1 - best[6] / torch[6]) == pytest.approx(61.86, abs=0.01)
        assert [100 * (1 - vit[2][at] / vit[4][at]) for at in (0, 3, 6)] == pytest.approx(
            [43.17, 60.01, 66.20], abs=0.01
        )
        assert deep[2][0] / deep[-1][0] > 30
        assert 100 * (1 - deep[2][1] / deep[4][1]) == pytest.approx(58.35, abs=0.01)
        split = [transfer + rest for _, transfer, rest in self.rows("fastensor-1")]
        assert split == pytest.approx([vit[4][3], deep[4][1], vit[4][6]], abs=1)

    def test_speedups_match_the_papers_text(self) -> None:
        saved = {row[0]: row for row in self.rows("fastensor-9")}
        assert saved[2411][3] / saved[2411][2] == pytest.approx(5.37, abs=0.005)  # torch over kvikio
        write = self.rows("fastensor-4")
        assert max(kvikio / torch for kvikio, torch, _ in write) == pytest.approx(3.38, abs=0.08)
        for plain, best, ratio, most, most_ratio in self.rows("flashneuron-3"):
            assert best / plain == pytest.approx(ratio)
            assert most / plain == pytest.approx(most_ratio)

    def test_memferrys_savings_match_the_papers_text(self) -> None:
        """As noted there, GO-MemFerry's saving over MemFerry does not follow from both savings."""
        (found,) = figures.of("MemFerry, figure 12")
        averages = {str(row[0]): float(str(row[-1])) for row in found.rows if row[1] == "all of the figure"}
        own, offloaded = (1 - averages[way] / 100 for way in ("MemFerry", "GO-MemFerry"))
        both = next(row[-1] for row in found.rows if row[3] == "MemFerry")
        assert 100 * (1 - offloaded / own) == pytest.approx(21.7, abs=0.05)
        assert both == 17.6

    def test_best_tool_shares_match_the_papers_text(self) -> None:
        """With the printed values, of which three cells are misprints, as noted."""
        assert self.best("fastensor-13", 4) == pytest.approx(0.7959, abs=0.02)
        assert self.best("fastensor-13", 5) == pytest.approx(0.8852, abs=0.02)
        assert self.best("fastensor-14", 5) == pytest.approx(0.8922, abs=0.07)
