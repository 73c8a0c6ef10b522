"""The file names of runs: different settings get different names, and a run replaces only its equals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import results as made
from benching import invoke
from fastio_bench.harness.command_run import CommandRun
from fastio_bench.harness.options import common
from fastio_bench.harness.rounds import Sample
from fastio_bench.harness.run_record import Report
from fastio_bench.hybrid import job, store
from fastio_bench.papers.performance_docs import render
from fastio_bench.report.documents import read_folder


@click.command(name="trial")
@click.option("--rounds", default=1)
@click.option("--end", default="")
@common
def trial(command_run: CommandRun, rounds: int, end: str) -> None:
    """A subcommand with one setting, which may be interrupted."""
    command_run.report.settings["rounds"] = rounds
    command_run.report.samples.append(Sample("save", "tensor-3.0625", "torch", 0, 10**6, 1.0, 1.0))

    def work(folder: Path) -> None:
        command_run.report.findings["end"] = end
        if end == "interrupted":
            raise KeyboardInterrupt

    command_run.run(work)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def run(out: Path, *arguments: object, status: int = 0) -> Result:
    command = ["--dir", str(out.parent), "--out", str(out), *map(str, arguments)]
    result = CliRunner().invoke(trial, command, catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


def told(path: Path) -> Any:
    return json.loads(path.read_text())


class TestNames:
    def test_run_with_other_settings_gets_a_new_name(self, out: Path) -> None:
        pytest.importorskip("matplotlib")
        run(out, "--rounds", 1)
        first = {path.name: path.read_bytes() for path in out.iterdir()}
        assert set(first) == {"trial.json", "trial-save.png"}
        said = run(out, "--rounds", 2).stderr
        assert f"written: {out / 'trial-2.json'}; trial.json is another run's, and stays" in said
        run(out, "--rounds", 3)
        run(out, "--rounds", 1, "--quick")
        assert {path.stem for path in out.glob("*.json")} == {"trial", "trial-2", "trial-3", "trial-quick"}
        assert len(list(out.glob("*.png"))) == 4
        assert first == {name: (out / name).read_bytes() for name in first}
        assert [told(out / f"{name}.json")["settings"]["rounds"] for name in ("trial", "trial-2", "trial-3")] == [
            1,
            2,
            3,
        ]

    def test_run_with_the_same_settings_replaces_the_earlier_one(self, out: Path) -> None:
        run(out, "--rounds", 1)
        run(out, "--rounds", 2, "--end", "first")
        said = run(out, "--rounds", 2, "--end", "second").stderr
        assert f"written: {out / 'trial-2.json'}, in the place of an earlier run with the same settings" in said
        assert told(out / "trial-2.json")["findings"] == {"end": "second"}
        assert {path.stem for path in out.glob("*.json")} == {"trial", "trial-2"}

    def test_interrupted_run_does_not_replace_a_complete_one(self, out: Path) -> None:
        run(out, "--end", "interrupted", status=130)
        run(out, "--end", "whole")
        assert not told(out / "trial.json")["interrupted"]
        run(out, "--end", "interrupted", status=130)
        assert told(out / "trial.json")["findings"] == {"end": "whole"}
        assert told(out / "trial-2.json")["interrupted"]

    @pytest.mark.parametrize("text", ["of another day", "[]", '{"settings": {"quick": false, "rounds": 1}}'])
    def test_foreign_file_is_not_replaced(self, text: str, out: Path) -> None:
        out.mkdir()
        (out / "trial.json").write_text(text)
        run(out)
        assert (out / "trial.json").read_text() == text
        assert told(out / "trial-2.json")["command"] == "trial"

    def test_run_on_another_disk_gets_a_new_name(self, tmp_path: Path) -> None:
        report = Report("trial", tmp_path, {"rounds": 1})
        first = report.write(tmp_path)
        there = told(first)
        there["machine"]["filesystem"]["device"] = "/dev/elsewhere"
        first.write_text(json.dumps(there))
        assert report.write(tmp_path).name == "trial-2.json"


class TestModes:
    @pytest.mark.parametrize(
        ("command", "name"),
        [
            (("offload", "--simulate"), "offload-simulated"),
            (("hybrid", "--optimizer-store", "--parameters", "17MB", "--steps", "2"), "hybrid-optimizer-store"),
        ],
    )
    def test_each_mode_has_its_own_name(
        self, command: tuple[str, ...], name: str, out: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store, "run", job._run)
        said = invoke(*command, "--dir", str(out.parent), "--out", str(out)).stderr
        assert f"written: {out / name}.json\n" in said
        assert [path.stem for path in out.glob("*.json")] == [name]
        assert all(path.stem.startswith(f"{name}-") for path in out.glob("*.png"))

    def test_documents_of_all_modes_are_in_the_docs(self, tmp_path: Path) -> None:
        """As `make bench-docs RESULTS=folder` reads them, without renaming a file."""
        for mode, settings in (("", {"rounds": 1}), ("", {"rounds": 2}), ("accuracy", {}), ("simulated", {})):
            report = made.imagined(tmp_path)
            report.mode, report.settings = mode, settings
            report.write(tmp_path / "results")
        text = render(read_folder(tmp_path / "results"))
        for name in ("offload", "offload (offload-2)", "offload (offload-accuracy)", "offload (offload-simulated)"):
            assert f"\n**{name}**: " in text

    def test_docs_report_no_measured_mode_as_missing(self, tmp_path: Path) -> None:
        """With the given file names, no figure that a document has is reported as missing."""
        found = {
            "accuracy": made.imagined(tmp_path).findings["accuracy"],
            "depths": [{"way": way, "depth": 8, "fails_at": 9, "reason": "too deep"} for way in ("plain", "all")],
        }
        sizes = {"depths": {"width": 64, "batch": 8, "memory_limit": 64 << 20}}
        missing = {"accuracy": "Not in these results: accuracy", "depths": "Not in these results: the deepest network"}
        report = made.offloaded(tmp_path)
        report.write(tmp_path / "results")
        before = render(read_folder(tmp_path / "results"))
        for finding, mode in (("accuracy", "accuracy"), ("depths", "memory-limit-transformer")):
            report = Report("offload", tmp_path, sizes.get(finding, {}), mode)
            report.findings[finding] = found[finding]
            report.write(tmp_path / "results")
        after = render(read_folder(tmp_path / "results"))
        for line in missing.values():
            assert line in before
            assert line not in after
