"""``fastio-bench offload --device``: training steps and the host's time on the simulated accelerator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from fastio_bench.offload.device_steps import SHARES
from fastio_bench.offload.options import offload

WAYS = ["plain", "fastio, all", "torchtune's method", "save_on_cpu, pinned"]
SMALL = ("--quick", "--depth", 2, "--width", 64, "--batch", 2, "--rounds", 1)


def invoke(folder: Path, *arguments: object) -> Any:
    given = [*map(str, arguments), "--json", "--dir", str(folder)]
    return CliRunner().invoke(offload, given, catch_exceptions=False)


@pytest.mark.simulated
def test_every_way_trains_in_modelled_time_beside_plain(tmp_path: Path) -> None:
    told = json.loads(invoke(tmp_path, "--device", "simulated", *SMALL).stdout)
    assert not told["failures"]
    assert [table["origin"] for table in told["exhibits"]] == ["simulated"] * len(SHARES)
    steps = told["findings"]["device_steps"]
    assert [(one["setting"], one["way"]) for one in steps] == [(setting, way) for setting in SHARES for way in WAYS]
    assert all(one["same_gradients"] for one in steps)
    for setting, share in SHARES.items():
        plain, *others = (one for one in steps if one["setting"] == setting)
        assert (plain["copies_s"], plain["moved_bytes"]) == (0, 0)
        for one in others:
            assert one["seconds"] >= max(plain["seconds"], one["copies_s"]) / 1.0001
            assert one["moved_bytes"] > 0
            assert one["peak_bytes"] <= plain["peak_bytes"]
        assert others[0]["copies_s"] <= 1.2 * share * plain["seconds"] + 0.01  # the latency of each copy is extra


@pytest.mark.simulated
def test_modelled_steps_of_plain_training_do_not_depend_on_the_machine(tmp_path: Path) -> None:
    runs = [json.loads(invoke(tmp_path, "--device", "simulated", *SMALL).stdout) for _ in range(2)]
    first, second = (run["findings"]["device_steps"][0]["seconds"] for run in runs)
    assert first == pytest.approx(second, rel=1e-6)


@pytest.mark.simulated
def test_host_time_on_the_simulated_accelerator(tmp_path: Path) -> None:
    told = json.loads(invoke(tmp_path, "--device", "simulated", "--host-time", "--rounds", 1).stdout)
    found = told["findings"]["host_time"]
    assert [one["device"] for one in found] == ["cpu"] * 3 + ["simulated"] * 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_named_with_the_cure(tmp_path: Path) -> None:
    result = invoke(tmp_path, "--device", "cuda")
    assert result.exit_code == 2
    assert "--device cuda: " in result.output
    assert "CUDA" in result.output


@pytest.mark.simulated
def test_fastensors_modes_write_files_and_have_memory_but_no_modelled_time(tmp_path: Path) -> None:
    told = json.loads(invoke(tmp_path, "--device", "simulated", "--tool", "w", "--tool", "r", *SMALL).stdout)
    assert not told["failures"]
    modes = {"fastio, fastensor", "fastio, Fastensor_w", "fastio, Fastensor_r"}
    steps = told["findings"]["device_steps"]
    assert {one["way"] for one in steps if one["files"]} == modes
    assert all(one["same_gradients"] for one in steps)
    plain = next(one["peak_bytes"] for one in steps if one["way"] == "plain")
    assert all(one["peak_bytes"] < plain for one in steps if one["way"] in modes)
    for table in told["exhibits"]:
        for way, *times, _, peak, gradients in table["rows"]:
            assert (times == [None] * 5) == (way in modes)
            assert peak > 0
            assert gradients == "equal"
    assert not list(tmp_path.iterdir())


def test_modes_of_the_cpu_alone_are_refused_on_a_device(tmp_path: Path) -> None:
    for option in (("--accuracy",), ("--memory-limit", "1GiB"), ("--batch", 1, "--batch", 2)):
        result = invoke(tmp_path, "--device", "cuda", *option)
        assert result.exit_code == 2
        assert "takes one --batch" in result.output
