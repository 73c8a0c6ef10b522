"""examples/train_hybrid.py, run in a process of its own from another folder."""

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
    return repository / "examples" / "train_hybrid.py"


def test_hybrid_training_equals_plain_and_prints_the_plan(example: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    ended = run(example, tmp_path, "--store", str(store), "--steps", "4")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    steps = re.findall(r"^\W*(\d+)\W+(\d+\.\d{9})\W+(\d+\.\d{9})\W+(yes|NO)\W*$", ended.stdout, re.MULTILINE)
    assert [number for number, *_ in steps] == ["1", "2", "3", "4"]
    assert all(plain == hybrid and verdict == "yes" for _, plain, hybrid, verdict in steps)
    assert len({plain for _, plain, *_ in steps}) == 4  # it learns
    assert "the same losses, weights and optimizer state, bit for bit" in ended.stdout
    planned = dict(re.findall(r"^(GFGB|DHA|DFGB), .*: (\d+) layers?", ended.stdout, re.MULTILINE))
    assert int(planned["DHA"]) > 0, "the budget is too small for all"
    assert int(planned["GFGB"]) + int(planned["DFGB"]) > 0
    assert re.search(r"optimizer state on disk so far: [1-9][\d.]* MiB written, [\d.]+ MiB read", ended.stdout)
    assert re.search(r"copied to the [^:]*: [1-9]\d* layers?", ended.stdout)
    assert sorted(os.listdir(tmp_path)) == ["store"]
    assert os.listdir(store) == []


def test_wrong_result_is_detected(example: Path, tmp_path: Path) -> None:
    """Its comparison, with two runs that differ in the last bit."""
    code = """
import dataclasses, math, sys
import train_hybrid as example

good = example.Outcome([2.5, 1.25], "abc", 0.5, "")
bad = good
def train(store, steps):
    return good if store is None else bad

example.train = train
sys.argv[1:] = ["--steps", "2"]
assert example.main() == 0
bad = dataclasses.replace(good, losses=[2.5, math.nextafter(1.25, 2)])
assert example.main() == 1
bad = dataclasses.replace(good, state="abd")
assert example.main() == 1
"""
    ended = run_code(example, tmp_path, code)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert os.listdir(tmp_path) == []


def test_invalid_arguments_are_refused(example: Path, tmp_path: Path) -> None:
    ended = run(example, tmp_path, "--steps", "0")
    assert ended.returncode == 2
    assert "--steps: at least 1" in ended.stderr
    ended = run(example, tmp_path, "--store", "none")
    assert ended.returncode == 2
    assert "--store: none is no folder" in ended.stderr
