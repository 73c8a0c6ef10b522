"""`fastio-bench papers`: every table and figure of the papers has a row, and ours comes from a model or a document."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from statistics import median

import pytest

import results as made
from benching import invoke
from fastio_bench.contend.modelled import THROUGH
from fastio_bench.harness.stats import summarise
from fastio_bench.io import tables as io_tables
from fastio_bench.papers import figures, page
from fastio_bench.papers.answers import ANSWERS
from fastio_bench.papers.performance_docs import citations
from fastio_bench.papers.rows import flashneuron, memferry
from fastio_bench.papers.rows.row import MODEL, NONE, NOTHING, PAPERS, Row
from fastio_bench.report.documents import Document, read, read_folder
from fastio_bench.report.table import ResultTable

NUMBERED = {  # the tables and the figures of each paper
    "Fastensor": (14, 5),
    "FlashNeuron": (4, 14),
    "vDNN": (0, 15),
    "MemFerry": (0, 14),
}


def found(folder: Path | None = None) -> dict[tuple[str, str, str], list[object]]:
    """The page's other cells, by its first three."""
    documents = [] if folder is None else read_folder(folder)
    return {(str(row[0]), str(row[1]), str(row[2])): list(row[3:]) for row in page.table(documents).rows}


class TestRows:
    def test_every_table_and_figure_has_a_row(self) -> None:
        asked = {
            (paper, kind, number + 1)
            for paper, counts in NUMBERED.items()
            for kind, count in zip(("table", "figure"), counts, strict=True)
            for number in range(count)
        }
        told = set[tuple[str, str, int]]()
        for row in page.rows():
            told |= citations(f"{row.paper}, {row.place}")
        assert told == asked

    def test_a_row_has_an_answer_or_a_reason(self) -> None:
        for row in page.rows():
            answered = row.model is not None or row.stored is not None
            assert answered == (row.way not in (NONE, NOTHING)), row
            assert answered or row.reason or row.way == NOTHING, row
            assert bool(row.command) == answered, row

    def test_rows_are_distinct(self) -> None:
        assert len(found()) == len(page.rows())

    def test_commands_agree_with_the_answers(self) -> None:
        """What `make bench-docs` names for a paper's table is what the page names, the page's own models apart."""
        for theirs in figures.tables():
            commands = {" ".join(answer.line.split()[:2]) for answer in ANSWERS[theirs.name]}
            own = [row for row in page.rows() if citations(f"{row.paper}, {row.place}") & citations(theirs.source)]
            assert own
            for row in own:
                if row.command not in ("", PAPERS):
                    assert " ".join(row.command.split()[:2]) in commands, row


class TestFigures:
    def test_models_are_computed_without_documents(self) -> None:
        rows = [row for row in page.table([]).rows if row[6] == MODEL]
        assert len(rows) > 30
        for row in rows:
            theirs, ours, ratio = row[3:6]
            assert isinstance(ours, (int, float)), row
            assert math.isfinite(ours), row
            assert ratio == (ours / theirs if isinstance(theirs, float) else None), row

    def test_measured_rows_name_the_command_without_documents(self) -> None:
        cells = found()["Fastensor", "table 2", "cached reads: the best tool over torch, at most x"]
        assert cells == [
            pytest.approx(2490.24 / 924.84, rel=0.1),
            None,
            None,
            "measured: no document",
            "fastio-bench io",
        ]

    def test_documents_give_ours_and_their_date(self, tmp_path: Path) -> None:
        folder = tmp_path / "results"
        swept = made.sweep(tmp_path)
        swept.tables += io_tables.measured(summarise(swept.samples), swept.failures)
        made.offloaded(tmp_path).write(folder)
        swept.write(folder)
        cells = found(folder)
        seconds = {
            tool: median(s.seconds for s in swept.samples if (s.work, s.tool, s.nbytes) == ("warm read", tool, largest))
            for largest in [max(sample.nbytes for sample in swept.samples)]
            for tool in made.TOOLS
        }
        ours = cells["Fastensor", "table 2", "cached reads: the best tool over torch, at most x"][1]
        assert isinstance(ours, float)
        assert ours >= seconds["torch"] / min(seconds.values()) * (1 - 1e-9)
        step = cells["Fastensor", "figure 5", "an epoch over plain training's, BERT, batch 64, x"]
        assert step[1] is None  # the document's network is another one

    def test_modes_are_over_the_third_one(self, tmp_path: Path) -> None:
        report = made.offloaded(tmp_path)
        report.settings["model"] = "vit"
        report.findings["ways"] = [
            {"way": way, "batch": 4, "step_s": seconds, "ratio": 1.0}
            for way, seconds in (("fastensor", 2.0), ("Fastensor_w", 3.0))
        ]
        report.write(tmp_path / "results")
        cells = found(tmp_path / "results")
        told = [
            cells["Fastensor", "table 11", f"ViT-H/14, batch 64: an epoch by {name} over that by WRDic, x"][1]
            for name in ("WDic", "RDic")
        ]
        assert told == [1.5, None]

    def test_a_step_of_fastio_is_none_of_torchs_ways(self, tmp_path: Path) -> None:
        report = made.offloaded(tmp_path)
        report.settings["model"] = "transformer"
        report.findings["ways"] = [
            {"way": way, "batch": 4, "step_s": seconds, "ratio": 1.0}
            for way, seconds in (("plain", 2.0), ("all", 3.0), ("fastensor", 4.0), ("torch", 5.0), ("save_on_cpu", 1.0))
        ]
        report.write(tmp_path / "results")
        told = found(tmp_path / "results")
        assert told["Fastensor", "figure 5", "an epoch over plain training's, BERT, batch 64, x"][1] == 1.5
        assert (
            told["Fastensor", "table 10", "BERT, batch 2,048: an epoch over that by torch.save and load, x"][1] == 0.6
        )

    def test_what_is_kept_at_worst_is_the_least_of_the_settings(self, tmp_path: Path) -> None:
        report = made.offloaded(tmp_path)
        way = f"offload {THROUGH}"
        rows = [["hide", "plain", 1.0], ["hide", way, 0.9], ["twice", "plain", 1.0], ["twice", way, 0.4]]
        report.tables.append(ResultTable("training-modelled", "kept", ("transfers", "way", "at 90%*"), rows))
        report.write(tmp_path / "results")
        asked = "training to host memory beside others: throughput kept at worst, %"
        assert found(tmp_path / "results")["FlashNeuron", "figure 12", asked][1] == pytest.approx(40)

    def test_newest_document_wins(self, tmp_path: Path) -> None:
        paths = []
        for number, apart in enumerate((timedelta(days=2), timedelta())):
            report = made.offloaded(tmp_path)
            report.settings["model"], report.mode = "transformer", f"run-{number}"
            report.began -= apart
            report.findings["ways"][1]["step_s"] = report.findings["ways"][0]["step_s"] * (number + 3)
            paths.append(report.write(tmp_path / "results"))
        theirs, ours, ratio, way, line = found(tmp_path / "results")[
            "Fastensor", "figure 5", "an epoch over plain training's, BERT, batch 64, x"
        ]
        assert isinstance(theirs, float)
        assert (ours, ratio) == (pytest.approx(4), pytest.approx(4 / theirs))
        assert way == f"measured {read(paths[1]).measured.date[:10]}"
        assert str(line).startswith("fastio-bench offload")

    def test_whole_run_wins_over_a_newer_quick_one(self, tmp_path: Path) -> None:
        row = "Fastensor", "figure 5", "an epoch over plain training's, BERT, batch 64, x"
        ways = []
        for number, quick in enumerate((True, False)):
            report = made.offloaded(tmp_path)
            report.settings |= {"model": "transformer", "quick": quick}
            report.began -= timedelta(days=number)
            report.findings["ways"][1]["step_s"] = report.findings["ways"][0]["step_s"] * (number + 3)
            report.write(tmp_path / "results")
            ways.append(found(tmp_path / "results")[row])
        assert [ours for _, ours, *_ in ways] == pytest.approx([3, 4])
        assert [str(way[3]).endswith(", --quick") for way in ways] == [True, False]

    def test_unfinished_documents_give_no_figure(self, tmp_path: Path) -> None:
        report = made.offloaded(tmp_path)
        report.findings["ways"] = []
        document = read(report.write(tmp_path / "results"))
        for row in page.rows():
            if row.stored is not None:
                assert row.stored(document) is None, row
        bare: Document = replace(document, findings={}, tables=[])
        assert all(row.stored(bare) is None for row in page.rows() if row.stored is not None)

    def test_enough_ssds_are_as_good_as_host_memory(self) -> None:
        enough = flashneuron.ssds()
        asked = flashneuron._as_fast(13.0e9)
        assert flashneuron._as_fast(min(enough * 3.0e9, 13.0e9)) >= asked > flashneuron._as_fast((enough - 1) * 3.0e9)

    def test_figures_of_texts_are_met(self) -> None:
        assert flashneuron.cost() == pytest.approx(35.3, abs=0.05)
        assert flashneuron.endurance_days() == pytest.approx(307, abs=1)

    def test_more_gpus_take_no_longer(self) -> None:
        shares = [memferry.parallel("Transformer-XL 4.3B", gpus) for gpus in (1, 2, 4, 8)]
        assert shares[0] == 1
        assert shares == sorted(shares, reverse=True)
        assert shares[-1] > 1 / 8  # parameters still have to come

    def test_reading_in_place_pays_for_embeddings_alone(self) -> None:
        assert memferry.in_place(0) < 1 < memferry.in_place(2)


class TestCommand:
    def test_json_is_the_table(self) -> None:
        told = json.loads(invoke("papers", "--json").stdout)
        assert told["name"] == "papers"
        assert [row[:3] for row in told["rows"]] == [[row.paper, row.place, row.what] for row in page.rows()]

    def test_prints_every_row(self) -> None:
        said = invoke("papers").stdout
        assert said.count("Fastensor") > 10
        assert "not answered" in said

    def test_folder_without_documents_is_told_below_the_same_rows(self, tmp_path: Path) -> None:
        told = json.loads(invoke("papers", str(tmp_path), "--json").stdout)
        assert told["rows"] == json.loads(invoke("papers", "--json").stdout)["rows"]
        assert f"No document (*.json) in {tmp_path}" in told["note"]

    def test_documents_without_a_figure_are_told(self, tmp_path: Path) -> None:
        offloaded, swept = made.offloaded(tmp_path), made.sweep(tmp_path)
        offloaded.settings["model"] = "transformer"
        offloaded.write(tmp_path / "results")
        swept.write(tmp_path / "results")  # without its tables
        note = json.loads(invoke("papers", str(tmp_path / "results"), "--json").stdout)["note"]
        assert f"2 documents read from {tmp_path / 'results'}, of io, offload." in note
        assert "No row has a figure from io.json (io):" in note

    def test_damaged_document_exits_with_one_line(self, tmp_path: Path) -> None:
        (tmp_path / "odd.json").write_text("{")
        assert "odd.json: cannot be read as JSON" in invoke("papers", str(tmp_path), status=1).output

    def test_help_imports_no_torch(self) -> None:
        script = "import sys; from fastio_bench.papers.options import papers; print('torch' in sys.modules)"
        said = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
        assert said == "False\n"


def test_row_without_an_answer_prints_its_reason() -> None:
    assert Row("A", "figure 1", "w", 2.0, reason="no").cells([]) == ["A", "figure 1", "w", 2.0, None, None, NONE, "no"]
