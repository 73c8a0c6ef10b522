"""DeepSpeed: its engine saves and loads by fastio, in files that its own checkpoint engine loads, and loads those."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from deepspeed_tasks import resumed, saved, saved_by_one
from ranks import Ranks
from required_packages import require

require("deepspeed")
pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with Ranks(2, tmp_path_factory.mktemp("ranks")) as ranks:
        yield ranks


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize(("saves", "loads"), [(True, True), (True, False), (False, True)])
def test_training_goes_on_from_a_checkpoint(two: Ranks, tmp_path: Path, stage: int, saves: bool, loads: bool) -> None:
    losses = two.run(saved, str(tmp_path), stage, saves)
    assert (tmp_path / "latest").read_text() == "global_step2"
    for there, (found, note) in zip(losses, two.run(resumed, str(tmp_path), stage, loads), strict=True):
        assert found == there
        assert note == {"a": 3}


def test_its_script_makes_weights_of_the_files(two: Ranks, tmp_path: Path) -> None:
    two.run(saved, str(tmp_path), 3, True)
    script = [sys.executable, str(tmp_path / "zero_to_fp32.py"), str(tmp_path), str(tmp_path / "whole")]
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}  # the variable here may be relative to another folder
    ran = subprocess.run(script, check=False, capture_output=True, text=True, env={**os.environ, **paths})
    assert ran.returncode == 0, ran.stderr
    (file,) = (tmp_path / "whole").glob("*.bin")
    assert torch.load(file)["0.weight"].shape == (40, 300)


def test_latest_names_no_checkpoint_that_a_rank_could_not_save(tmp_path: Path) -> None:
    with Ranks(2, tmp_path, timeout=30) as ranks:
        (_, first), (good, second) = ranks.answers(saved_by_one, str(tmp_path / "run"))
    assert not good
    assert "TargetIsFolderError" in second
    assert "timed out" in first.lower() or "closed" in first.lower(), first
    assert (tmp_path / "run" / "latest").read_text() == "whole"
    assert not [name for name in os.listdir(tmp_path / "run" / "torn") if name.endswith(".tmp")]
