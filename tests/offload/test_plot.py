"""Tests the plot of an iteration: the text of the SVG, the files, and the errors."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from fastio.errors import FolderMissingError
from fastio.offload import Offload
from fastio.offload.planning.timeline import Timeline, Transfer
from fastio.offload.plot import draw
from fastio.offload.report import Event, Iteration, Report, Traffic
from fastio.runtime.installation import pip_install

pytest.importorskip("matplotlib")

MIB = 1 << 20
BEGINNINGS = {".png": b"\x89PNG\r\n", ".svg": b"<?xml", ".pdf": b"%PDF-"}


def run(store: Path, steps: int, budget: str | None = None) -> Report:
    """A real report, after some steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 8))
    x = torch.randn(256, 64)
    offload = Offload(model, store=store, budget=budget)
    for _ in range(steps):
        with offload:
            loss = model(x).square().mean()
        loss.backward()
    report = offload.report()
    offload.close()
    return report


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report with known timelines: two iterations are complete, the third is not."""
    predicted = Timeline(0.5, 0.8, 0.0125, 0.025, (Transfer(0, 0.1, 0.2),), (Transfer(0, 0.6, 0.7),))
    events = [
        Event("write", 1, 0, MIB, 3.0, 3.1, "disk"),
        Event("write", 2, 0, MIB, 10.1, 10.2, "disk"),
        Event("write", 2, 1, 2 * MIB, 10.2, 10.3, "host"),
        Event("read", 2, 1, 2 * MIB, 10.6, 10.65, "host"),
        Event("read", 2, 0, MIB, 10.7, 10.8, "disk"),
        Event("write", 3, 0, MIB, 20.1, 20.2, "swap"),
    ]
    iterations = (
        Iteration(1, 3.0, 3.5, 3.5, 4.0),
        Iteration(2, 10.0, 10.5, 10.5, 11.25),
        Iteration(3, 20.0, 20.5),
    )
    real = run(tmp_path_factory.mktemp("store"), 1)
    report = dataclasses.replace(real, predicted=predicted, events=tuple(events), iterations=iterations)
    return moved(report, writes=4, reads=2)


def moved(report: Report, writes: int, reads: int) -> Report:
    """Return the report as if the manager had made this many transfers."""
    traffic = {"disk": Traffic(writes, writes * MIB, reads, reads * MIB)}
    return dataclasses.replace(report, counts=dataclasses.replace(report.counts, traffic=traffic))


def texts(report: Report, folder: Path) -> list[str]:
    """Return the texts in the picture."""
    path = folder / "it.svg"
    draw(report, path)
    return re.findall(r">([^<>\n]+)</text>", path.read_text())


def test_plot_shows_the_latest_complete_iteration_above_its_prediction(made: Report, tmp_path: Path) -> None:
    said = texts(made, tmp_path)
    assert "actual: iteration 2, 1250.0 ms" in said
    assert "predicted: 1337.5 ms, of which waiting 12.5 in forward, 25.0 in backward" in said
    assert said.count("passes") == 2
    assert {"disk writes", "disk reads", "host writes", "host reads", "writes", "reads"} <= set(said)
    assert {"forward", "backward", "write", "read", "away", "MiB"} <= set(said)
    assert "swap writes" not in said  # of another iteration
    assert f"activation offload, policy {made.policy}" in said
    times = [float(text) for text in said if re.fullmatch(r"\d+", text)]
    assert max(times) >= 1200  # one time axis


def test_plot_says_what_is_missing(made: Report, tmp_path: Path) -> None:
    said = texts(dataclasses.replace(made, predicted=None, iterations=made.iterations[2:]), tmp_path)
    assert "no iteration is complete: backward has not run" in said
    assert "no prediction: no iteration of this shape came before" in said
    said = texts(moved(dataclasses.replace(made, events=()), writes=0, reads=0), tmp_path)
    assert "actual: iteration 2, 1250.0 ms" in said
    assert "nothing was moved" in said


def test_plot_says_that_old_transfers_are_missing(made: Report, tmp_path: Path) -> None:
    forgotten = "actual: iteration 2, 1250.0 ms (its first transfers are no longer remembered)"
    assert forgotten not in texts(made, tmp_path)
    cut = dataclasses.replace(made, events=made.events[2:])
    assert forgotten in texts(cut, tmp_path)
    # Missing transfers of other iterations do not matter.
    assert forgotten not in texts(moved(made, writes=10, reads=5), tmp_path)


@pytest.mark.parametrize("suffix", BEGINNINGS)
def test_real_report_is_drawn_in_each_format(tmp_path: Path, suffix: str) -> None:
    store, target = tmp_path / "store", tmp_path / f"picture{suffix.upper()}"
    store.mkdir()
    report = run(store, 3, "1MiB")
    assert report.predicted is not None
    assert report.iterations[-1].backward_ended_s is not None
    target.write_bytes(b"an older picture")
    draw(report, target)
    assert target.read_bytes().startswith(BEGINNINGS[suffix])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [target.name, "store"]
    said = texts(report, tmp_path)
    assert any(text.startswith(f"actual: iteration {report.iterations[-1].step}, ") for text in said)
    assert "disk writes" in said


def test_unknown_suffix_and_missing_folder_raise_errors(made: Report, tmp_path: Path) -> None:
    for name in ("it.txt", "it"):
        with pytest.raises(ValueError, match=r"a plot is one of \.png, \.svg, \.pdf, got"):
            draw(made, tmp_path / name)
    with pytest.raises(FolderMissingError):
        draw(made, tmp_path / "none" / "it.png")
    assert os.listdir(tmp_path) == []


def test_only_plot_needs_matplotlib_and_its_error_names_the_cure(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["matplotlib"] = None
import fastio.offload.plot
try:
    fastio.offload.plot.draw(None, "it.png")
except fastio.ToolUnavailableError as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert "'matplotlib' is unavailable" in ended.stdout
    assert pip_install("bench", "matplotlib") in ended.stdout
