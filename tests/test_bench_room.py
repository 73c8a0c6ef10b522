"""On a small disk every command cuts what does not fit, says so, and measures the rest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benching import MIB, invoke, on_disk
from fastio.bench import contend_command, contention, doctor, room, sweep
from fastio.bench import workloads as objects
from fastio.bench.pace import Line, through

CUT = "for want of memory or disk"


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return on_disk(tmp_path)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """The disk is said to have so many bytes left."""

    def say(nbytes: int) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 40, 0, nbytes))

    return say


def told(*arguments: str, disk: Path) -> dict[str, Any]:
    """What a command found, and its notes on one line, as ``cut``."""
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


def test_doctor_takes_a_smaller_tensor_and_less_of_the_disk(disk: Path, free: Callable[[int], None]) -> None:
    free(24 * MIB)
    found = told("doctor", "--quick", disk=disk)
    assert "one tensor, 3.0625 MiB instead of 49 MiB" in found["cut"]
    assert "limit of the disk: 12 MiB at a time" in found["cut"]
    assert {summary["nbytes"] for summary in found["summaries"]} == {12 * MIB}
    assert found["settings"]["ways"] == "one tensor, 3.0625 MiB"
    assert [name for name, _ in found["findings"]["ways"]] == ["durable save", "save", "cold load", "warm load"]


def test_store_moves_less_and_leaves_large_activations_out(disk: Path, free: Callable[[int], None]) -> None:
    free(16 * MIB)
    found = told("store", "--quick", "--rounds", "1", "--sizes", "1MiB,33MB", disk=disk)
    assert "8.389 MB a call instead of 132 MB" in found["cut"]
    assert "left out, for want of memory or disk: activations of 33 MB" in found["cut"]
    assert {summary["nbytes"] for summary in found["summaries"]} == {8 * MIB}


def test_contend_takes_a_smaller_tensor(
    disk: Path, free: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contention, "WORKS", ())
    monkeypatch.setattr(contention, "WAYS", ())
    monkeypatch.setattr(contention, "_LEARNING", 1)
    monkeypatch.setattr(contend_command, "QUICK_BATCH", 4)
    free(24 * MIB)
    found = told("contend", "--quick", "--rounds", "1", disk=disk)
    assert found["cut"] == "one tensor, 3.0625 MiB instead of 12.25 MiB, for want of memory or disk"
    assert found["settings"]["workload"] == "tensor-3.0625"


def test_io_probes_no_size_that_does_not_fit() -> None:
    small, large = objects.one_tensor(1), objects.one_tensor(512)
    assert [size.name for size in sweep.probed([small])] == [small.name]
    sizes = [size.nbytes for size in sweep.probed([small, large])]
    assert sizes[0] == small.nbytes < sizes[1] <= large.nbytes
    assert through((10, 3.0), (10, 5.0)) == Line(3.0, 0.0)


def test_where_nothing_fits_all_is_named(disk: Path, free: Callable[[int], None]) -> None:
    free(MIB)
    found = told("io", "--quick", "--tool", "posix", disk=disk)
    assert found["cut"] == "left out, for want of memory or disk: 196, 3.0625 MiB"
    assert found["samples"] == []
    assert room.one_size(doctor.PROBE_BATCH, disk, 3)[0].name == "tensor-3.0625"
