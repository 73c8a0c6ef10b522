"""On a small disk every command leaves out what does not fit, with a note, and measures the rest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benching import MIB, invoke, on_disk
from fastio_bench.contend import command, contention
from fastio_bench.doctor import checks
from fastio_bench.harness import room
from fastio_bench.harness.round_budget import Line, through
from fastio_bench.io import cost_probe
from fastio_bench.offload import training_child, training_room, training_ways
from fastio_bench.offload.training_job import Job, Run
from fastio_bench.workloads import objects, training_models
from fastio_bench.workloads.training_models import Size

CUT = "for want of memory or disk"


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return on_disk(tmp_path)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Pretend that the disk has so many bytes left."""

    def say(nbytes: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 40, 0, nbytes))

    return say


def told(*arguments: str, disk: Path) -> dict[str, Any]:
    """The command's document, with its notes on one line as ``cut``."""
    found: dict[str, Any] = json.loads(invoke(*arguments, "--json", "--dir", str(disk)).stdout)
    assert not found["interrupted"]
    assert not list(disk.iterdir())
    return {**found, "cut": "; ".join(note for note in found["notes"] if CUT in note)}


def test_peers_measures_the_workload_that_fits(disk: Path, free: Callable[[int], None]) -> None:
    free(200 * MIB)
    workloads = ("--workload", "tensor-784", "--workload", "tensor-3.0625")
    found = told("peers", *workloads, "--tool", "torch", "--work", "save", "--rounds", "1", disk=disk)
    assert found["cut"] == "left out, for want of memory or disk: one tensor, 784 MiB"
    assert found["settings"]["workloads"] == ["tensor-3.0625"]
    assert {sample["workload"] for sample in found["samples"]} == {"tensor-3.0625"}


def test_doctor_uses_a_smaller_tensor_and_less_disk(disk: Path, free: Callable[[int], None]) -> None:
    free(24 * MIB)
    found = told("doctor", "--quick", disk=disk)
    assert "one tensor, 3.0625 MiB instead of 49 MiB" in found["cut"]
    assert "limit of the disk: 12 MiB at a time" in found["cut"]
    assert {summary["nbytes"] for summary in found["summaries"]} == {12 * MIB}
    assert found["settings"]["ways"] == "one tensor, 3.0625 MiB"
    assert [name for name, _ in found["findings"]["ways"]] == ["durable save", "save", "cold load", "warm load"]


def test_store_moves_less_and_leaves_out_large_activations(disk: Path, free: Callable[[int], None]) -> None:
    free(16 * MIB)
    found = told("store", "--quick", "--rounds", "1", "--sizes", "1MiB,33MB", disk=disk)
    assert "8.389 MB a call instead of 132 MB" in found["cut"]
    assert "left out, for want of memory or disk: activations of 33 MB" in found["cut"]
    assert {summary["nbytes"] for summary in found["summaries"]} == {8 * MIB}


def test_contend_uses_a_smaller_tensor(
    disk: Path, free: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contention, "WORKS", ())
    monkeypatch.setattr(contention, "WAYS", ())
    monkeypatch.setattr(contention, "_LEARNING", 1)
    monkeypatch.setattr(command, "QUICK_BATCH", 4)
    free(24 * MIB)
    found = told("contend", "--quick", "--rounds", "1", disk=disk)
    tensor, training = found["cut"].split("; ")
    assert tensor == "one tensor, 3.0625 MiB instead of 12.25 MiB, for want of memory or disk"
    assert found["settings"]["workload"] == "tensor-3.0625"
    batch = found["settings"]["training"]["batch"]
    assert training == f"transformer: batch {batch} instead of 8, for want of memory or disk"
    assert 1 <= batch < 8


@pytest.mark.parametrize("model", training_models.ARCHITECTURES)
def test_need_matches_the_bytes_that_ways_write(model: str, tmp_path: Path) -> None:
    known = training_models.ARCHITECTURES[model]
    size = Size(model, 8, 3, max(64, known.width // 4))
    needed = 8 * training_room.need(size).example
    for name, settings in ((training_ways.TORCH, {}), (training_ways.SYNCHRONOUS, {"policy": "fastensor"})):
        training = training_models.make(size.architecture, size.batch, size.depth, size.width)
        folder = tmp_path / name
        folder.mkdir()
        with closing(training_ways.make(name, training.model, folder, settings)) as way:
            with way.forward():
                loss = training.loss()
            written = sum(path.stat().st_size for path in folder.iterdir())
            if report := way.report():  # its files have no names
                written = sum(traffic.written_bytes for traffic in report.traffic.values())
            assert 0.2 * needed < written <= 1.1 * needed, name
            loss.backward()


def test_size_too_large_to_make_is_kept_unchanged(tmp_path: Path) -> None:
    size = Size("mlp", 4, 2, 1 << 24)
    assert training_room.fitting(size, tmp_path) == (size, "")
    assert training_room.deepest(size, tmp_path, 100) == 100


def test_offload_reduces_the_batch(disk: Path, free: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Size("mlp", 64, 2, 32)
    needed = training_room.need(asked)
    jobs: list[Job] = []

    def known(job: Job, environment: object = None) -> Run:
        jobs.append(job)
        return Run([1.0], 1.0, 0, [1.0], 0, 1.0, None, None)

    monkeypatch.setattr(training_child, "train", known)
    free(2 * needed.parameters + 40 * needed.example + 1)
    sizes = ("--model", "mlp", "--batch", "64", "--depth", "2", "--width", "32", "--rounds", "1", "--steps", "1")
    found = told("offload", *sizes, disk=disk)
    assert found["cut"] == "mlp: batch 40 instead of 64, for want of memory or disk"
    assert found["settings"]["batch"] == [40]
    assert {job.batch for job in jobs} == {40}


def test_offload_tries_no_depth_beyond_the_disk(
    disk: Path, free: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Job] = []

    def train(job: Job, environment: object = None) -> None:
        tried.append(job)
        if job.way == "plain" and job.depth > 2:
            raise training_child.OutOfMemoryError("too deep")

    monkeypatch.setattr(training_child, "train", train)
    free(8 * training_room.need(Size("mlp", 8, 13, 32)).example)
    sizes = ("--memory-limit", "64MiB", "--model", "mlp", "--batch", "8", "--width", "32")
    found = told("offload", *sizes, disk=disk)
    assert found["cut"] == "all: no depth above 13 is tried, for want of memory or disk"
    depths = {one["way"]: one["depth"] for one in found["findings"]["depths"]}
    assert depths == {"plain": 2, "all": 13}
    assert max(job.depth for job in tried) == 13
    assert found["findings"]["goals"] == [], "ten times as deep was not tried"


def test_hybrid_reduces_the_state(disk: Path, free: Callable[[int], None]) -> None:
    free(60_000_000)
    found = told("hybrid", "--optimizer-store", "--parameters", "34MB", "--steps", "2", disk=disk)
    assert found["cut"] == "0.020 GB of parameters instead of 0.034 GB, for want of memory or disk"
    assert found["settings"]["nbytes"] == 20_000_000
    assert found["findings"]["runs"]["plain"]["parameter_bytes"] <= 20_000_000


def test_io_probes_only_sizes_that_fit() -> None:
    small, large = objects.one_tensor(1), objects.one_tensor(512)
    assert [size.name for size in cost_probe.sizes([small])] == [small.name]
    sizes = [size.nbytes for size in cost_probe.sizes([small, large])]
    assert sizes[0] == small.nbytes < sizes[1] <= large.nbytes
    assert through((10, 3.0), (10, 5.0)) == Line(3.0, 0.0)


def test_every_workload_is_named_if_none_fits(disk: Path, free: Callable[[int], None]) -> None:
    free(MIB)
    found = told("io", "--quick", "--tool", "posix", disk=disk)
    assert found["cut"] == "left out, for want of memory or disk: 196, 12.25, 3.0625 MiB"
    assert found["samples"] == []
    assert room.one_size(checks.PROBE_BATCH, disk, 3)[0].name == "tensor-3.0625"
