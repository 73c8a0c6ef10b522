"""doctor's tables of NVMe controllers, on fake machines and on this one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fastio.nvme
from benching import MIB, invoke, on_disk
from fastio.nvme import controllers
from fastio.nvme.facts import facts
from fastio_bench.doctor import checks, nvme
from fastio_bench.machine import others
from machines import Machine

ADDRESS = "0000:03:00.0"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A fake machine with two controllers, which doctor inspects instead of this one."""
    made = Machine(tmp_path / "machine")
    made.controller(ADDRESS, number=0, serial="S4EV1234", group=5)
    made.namespace(ADDRESS, nsid=1, nbytes=8 * MIB, lba=4096)
    made.partition("nvme0n1", 1)
    made.mount("nvme0n1p1", "/data")
    made.pci("0000:04:00.0", driver="vfio-pci", group=6)
    monkeypatch.setattr(nvme, "controllers", lambda: controllers(made.root))
    monkeypatch.setattr(nvme, "facts", lambda: facts(made.root))
    return made


def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> str:
    monkeypatch.setattr(checks, "LIMIT_NBYTES", 16 * MIB)
    return invoke("doctor", "--quick", "--dir", str(on_disk(tmp_path)), *options).stdout


def test_lists_controllers_and_obstacles(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = ask(tmp_path, monkeypatch)
    for expected in (
        "NVMe controllers",
        "S4EV1234",
        "in use: nvme0n1p1 is mounted on /data",
        "vfio-pci has it, not the kernel's nvme",
        "not loaded: vfio_pci",
        "sudo modprobe -a vfio_pci",
        "on, 2 groups",
        "GPU memory for NVMe",
    ):
        assert expected in said, expected
    assert nvme.NONE not in said


def test_json_has_controllers_and_obstacles(machine: Machine) -> None:
    first, second = json.loads(json.dumps(nvme.find().document()))
    assert (first["address"], first["serial"], first["driver"]) == (ADDRESS, "S4EV1234", "nvme")
    (namespace,) = first["namespaces"]
    assert (namespace["lba_bytes"], namespace["nbytes"]) == (4096, 8 * MIB)
    assert set(first["obstacles"]) == set(fastio.nvme.DRIVERS)
    assert first["obstacles"]["nvme"] == [{"problem": "in use: nvme0n1p1 is mounted on /data", "commands": []}]
    assert second["driver"] == "vfio-pci"
    assert all(set(one) == {"problem", "commands"} for told in second["obstacles"].values() for one in told)


def test_driver_without_obstacles_is_ready(tmp_path: Path) -> None:
    made = Machine(tmp_path / "machine")
    made.controller(ADDRESS, number=0, serial="S1", group=5)
    made.namespace(ADDRESS, nsid=1, nbytes=8 * MIB)
    told = facts(made.root)
    found = nvme.Found(told, [(one, fastio.nvme.obstacles(one, told)) for one in controllers(made.root)])
    table, ways = nvme.tables(found)
    assert [row[-1] for row in table.rows] == ["nvme0n1: 0.0 GB, LBA 512, unused"]
    ready = {row[1] for row in ways.rows if row[2] == "ready"}
    assert ready == {"uring", "nvme"}


def test_no_controller_gives_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvme, "controllers", list)
    monkeypatch.setattr(others, "remark", lambda busy, processors: [])  # the machine may be busy
    told = json.loads(ask(tmp_path, monkeypatch, "--json"))
    assert told["findings"]["nvme"] == []
    assert told["exhibits"] == []
    assert told["notes"] == [nvme.NONE]
