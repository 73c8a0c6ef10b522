"""The scripts for the hour with a GPU, each of them at a small size on the accelerator that is here."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from accelerators import DEVICE
from benching import on_disk
from fastio_bench.gpu import (
    checkpoint,
    codecs,
    csr,
    first_pass,
    forking,
    host_views,
    host_weights,
    machine,
    peer_window,
    pinning,
    save_load,
    trace,
)

pytestmark = pytest.mark.gpu

SMALL = ("--layers=1", "--width=64", "--tokens=16", "--batch=2", "--host-budget=1MiB")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a script; returns the line that it prints."""

    def call(script: Any, *arguments: str) -> dict[str, Any]:
        script.main([f"--device={DEVICE}", *arguments])
        (line,) = capsys.readouterr().out.splitlines()
        told: dict[str, Any] = json.loads(line)
        assert (told["device"] == "simulated device") == (DEVICE == "simulated")
        return told

    return call


def test_machine_lists_what_is_allowed(run: Any, tmp_path: Path) -> None:
    told = run(machine, f"--dir={tmp_path}")
    assert {"direct I/O", "io_uring"} <= told["system"].keys()
    assert told["tools"]["posix"] == "available"
    if DEVICE == "cuda":
        assert told["attributes"]["UnifiedAddressing"] == 1


def test_pinning_measures_all_kinds_of_host_memory(run: Any) -> None:
    told = run(pinning, "--mib=1")
    assert {"make_s", "register_s", "unregister_s", "free_s"} <= told["ours"].keys()
    for kind in ("ours", "pin_memory", "pageable"):
        assert told[kind]["to_device_GB_s"] > 0
        assert told[kind]["to_host_GB_s"] > 0


def test_host_and_device_see_each_others_bytes(run: Any) -> None:
    told = run(host_views, "--mib=1")
    assert told["same_address"]
    assert told["host_sees"]
    assert told["device_sees"] == [True, True]


@pytest.mark.filterwarnings("ignore:RNN module weights")  # cuDNN packs them again for each pass
@pytest.mark.parametrize("layer", host_weights.LAYERS)
def test_layers_compute_with_weights_in_host_memory(run: Any, layer: str) -> None:
    told = run(host_weights, f"--layer={layer}", "--width=64", "--batch=2")
    assert told["weights"] > 0
    assert told["same_bits"] or DEVICE == "cuda"


def test_fork_leaves_pinned_memory_usable(run: Any) -> None:
    told = run(forking, "--mib=1")
    assert told["arrived"]
    assert told["pinned"]


@pytest.mark.cuda
def test_csr_brings_back_the_bits(run: Any) -> None:
    told = run(csr, "--elements=300")
    assert told["cases"] == 60
    assert told["wrong"] == []


def test_csr_cases_hold_for_the_codec_of_the_cpu() -> None:
    same = csr.outcomes(300, torch.device("cpu"))
    assert len(same) == 60
    assert all(same.values())


@pytest.mark.simulated
def test_csr_fails_where_there_are_no_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        csr.main(["--device=simulated"])
    assert "no kernels for simulated devices" in json.loads(capsys.readouterr().out)["unavailable"]


@pytest.mark.parametrize("policy", ["pinned", "gds"])
@pytest.mark.usefixtures("kvikio")
def test_save_load_uses_the_tool(run: Any, policy: str, tmp_path: Path) -> None:
    told = run(save_load, f"--policy={policy}", "--mib=1", f"--dir={on_disk(tmp_path)}")
    assert told["same"]
    assert told["ways"]["load"].startswith(policy)


def test_peer_window_says_how_or_why_not(run: Any) -> None:
    told = run(peer_window)
    if "host_sees" in told:
        assert told["host_sees"]
        assert told["device_sees"]
    else:
        assert told["window"].startswith("no disk can reach this GPU memory: dma-buf: ")


def test_codecs_have_speeds(run: Any) -> None:
    told = run(codecs, "--mib=1", "--rounds=1")
    assert told["codecs"]["fp16"]["ratio"] == 2


@pytest.mark.parametrize("plain_steps", [0, 1])
def test_first_pass_times_each_step(run: Any, plain_steps: int, tmp_path: Path) -> None:
    told = run(first_pass, f"--plain-steps={plain_steps}", "--steps=3", *SMALL, f"--dir={tmp_path}")
    assert len(told["plain_s"]) == plain_steps
    assert len(told["offload_s"]) == 3


def test_trace_is_a_file_and_figures(run: Any, tmp_path: Path) -> None:
    told = run(trace, *SMALL, f"--dir={tmp_path}", f"--out={tmp_path / 'out'}")
    assert (told["step_ms"] is not None) == (DEVICE == "cuda")
    with gzip.open(tmp_path / "out" / "trace.json.gz") as file:
        assert json.load(file)["traceEvents"]


def test_trace_summary_counts_what_ran_at_once() -> None:
    """Kernels from 1 to 6 and from 8 to 9 ms; copies from 0 to 2 and from 7 to 8.5 ms."""
    kernels = [(5e3, 6e3), (1e3, 3e3), (2e3, 4e3), (4e3, 5e3), (8e3, 9e3)]
    told = trace.summary(kernels, [(0, 2e3), (7e3, 8.5e3)])
    assert told == {"step_ms": 9, "kernels_ms": 6, "copies_ms": 3.5, "both_ms": 1.5, "longest_gaps_ms": [2]}


def test_checkpoint_restores_the_state(run: Any, tmp_path: Path) -> None:
    told = run(checkpoint, "--mib=4", f"--dir={tmp_path}")
    assert told["same"]
    assert told["restore_GB_s"] > 0
    assert told["incremental_blocked_s"] > 0
