"""examples/resume.py, run in a process of its own from another folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from example_runs import run, run_code
from required_packages import require

require("rich", "sklearn")


@pytest.fixture
def example(repository: Path) -> Path:
    return repository / "examples" / "resume.py"


@pytest.mark.slow
def test_killed_training_resumes_with_equal_results(example: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    ended = run(example, tmp_path, "--folder", str(folder), "--steps", "60")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = re.findall(r"^\W*(\d+)\W+(\d+\.\d{9})\W+(\d+\.\d{9})\W+(yes|NO)(.*)$", ended.stdout, re.MULTILINE)
    assert len(rows) >= 3
    assert all(plain == resumed and verdict == "yes" for _, plain, resumed, verdict, _ in rows)
    assert len({plain for _, plain, *_ in rows}) == len(rows)  # it learns
    killed = [int(step) for step, *_, note in rows if "killed" in note]
    assert len(killed) == 1
    assert f"killed and resumed after step {killed[0]}: the same 60 losses and weights, bit for bit" in ended.stdout
    assert 0 < killed[0] < 60
    assert os.listdir(folder) == []
    assert os.listdir(tmp_path) == ["folder"]


def test_wrong_result_is_detected(example: Path, tmp_path: Path) -> None:
    """Its comparison, with two trainings that differ in the last bit."""
    code = """
import math, sys
import torch
import resume as example

good = {"losses": [2.5] * 30, "model": {"weight": torch.ones(3)}}
other = good
example.run = lambda data, checkpoints, steps, every, kill_at: 10
example.outcome = lambda checkpoints: good if "undisturbed" in checkpoints else other
sys.argv[1:] = ["--steps", "30"]
assert example.main() == 0
other = {**good, "losses": [2.5] * 29 + [math.nextafter(2.5, 3)]}
assert example.main() == 1
other = {**good, "model": {"weight": torch.tensor([1.0, 1.0, math.nextafter(1.0, 2)], dtype=torch.float64)}}
assert example.main() == 1
"""
    ended = run_code(example, tmp_path, code)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert os.listdir(tmp_path) == []


def test_invalid_arguments_are_refused(example: Path, tmp_path: Path) -> None:
    ended = run(example, tmp_path, "--kills", "0")
    assert ended.returncode == 2
    assert "--kills: at least 1" in ended.stderr
    ended = run(example, tmp_path, "--folder", "none")
    assert ended.returncode == 2
    assert "--folder: none is no folder" in ended.stderr
