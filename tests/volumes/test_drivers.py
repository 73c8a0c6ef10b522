"""Volumes that are named by a controller's address: a dictionary chooses which driver drives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import controllers
import fastio
from controllers import ADDRESS, WHERE, Controller
from fastio.backends import spdk
from fastio.dicts import Dictionary
from fastio.errors import RefusedError, ToolUnavailableError, VolumeError
from fastio.transports import registry
from fastio.volumes import Volume, drivers, namespace_device

ANY = f"nvme:{ADDRESS}"
STATE = {"value": torch.arange(300_000)}


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A controller that the kernel's driver does not have, and a build with SPDK, with a volume."""
    for module in (spdk, drivers):
        monkeypatch.setattr(module, "why_no_spdk", lambda: "")
    monkeypatch.setattr(registry, "_tools", {})
    path = controllers.on_file(tmp_path / "disk", monkeypatch)
    Volume.create(ANY).close()
    return path


def faster(tool: str, folder: Path) -> Path:
    """A file of a dictionary that knows one of the drivers as the faster one."""
    dictionary = Dictionary()
    nbytes = STATE["value"].nbytes
    contexts = [fastio.explain(nbytes, op, folder=ANY).context for op in ("save", "load")]  # type: ignore[arg-type]
    for context in (*contexts, contexts[1]._replace(resident=False)):
        for _ in range(5):
            for name in ("vfio", "spdk"):
                dictionary.observe(context, nbytes, name, 0.1 if name == tool else 1.0)
    dictionary.dump(folder / f"{tool}.json")
    return folder / f"{tool}.json"


def test_a_dictionary_chooses_among_the_drivers_of_a_controller(disk: Path, tmp_path: Path) -> None:
    fastio.save(STATE, f"{ANY}/old.pt", policy="vfio")
    for number, tool in enumerate(("spdk", "vfio", "spdk")):
        policy = faster(tool, tmp_path)
        before = Controller.drivers[-1]
        Controller.drivers.clear()
        assert fastio.save(STATE, f"{ANY}/{number}.pt", policy=policy).tool == tool
        with fastio.record() as transfers:
            assert torch.equal(fastio.load(f"{ANY}/{number}.pt", policy=policy)["value"], STATE["value"])
        assert [(one.tool, one.verified) for one in transfers] == [(tool, True)]
        assert fastio.verify(f"{ANY}/{number}.pt").checksummed
        assert Controller.drivers == [before, tool, tool, tool]  # it changes once, then opens the controller
    told = fastio.explain(f"{ANY}/1.pt")
    assert {entry.tool for entry in told.entries} == {"vfio", "spdk"}
    assert told.context.device == f"cpu, {ADDRESS}"
    with Volume.open(WHERE) as volume:
        assert [entry.name for entry in volume.ls()] == ["0.pt", "1.pt", "2.pt", "old.pt"]


def test_the_drivers_share_what_dictionaries_know(disk: Path) -> None:
    for _ in range(3):
        for where in (WHERE, f"spdk:trtype=PCIe traddr={ADDRESS}"):
            fastio.save(STATE, f"{where}/x.pt")
    told = fastio.explain(STATE["value"].nbytes, "save", folder=ANY)
    assert {(entry.tool, entry.samples > 0) for entry in told.entries} == {("vfio", True), ("spdk", True)}


def test_another_driver_does_it_if_one_cannot(disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = faster("spdk", tmp_path)
    opened: Any = namespace_device.BlockStore

    def no_spdk(devices: Any, limit: int, driver: str, alignment: int) -> Any:
        if driver == "spdk":
            raise RefusedError("no huge pages")
        return opened(devices, limit, driver, alignment)

    monkeypatch.setattr(namespace_device, "BlockStore", no_spdk)
    result = fastio.save(STATE, f"{ANY}/x.pt", policy=policy)
    assert result.tool == "vfio"
    assert "spdk: " in result.fallbacks[0]
    assert "driver spdk (no huge pages)" in result.fallbacks[0]
    assert torch.equal(fastio.load(f"{ANY}/x.pt", policy=policy)["value"], STATE["value"])
    with pytest.raises(RefusedError, match="no huge pages"):
        fastio.save(STATE, f"{ANY}/y.pt", policy="spdk")
    with Volume.open(ANY) as volume:
        assert [entry.name for entry in volume.ls()] == ["x.pt"]
    with pytest.raises(ToolUnavailableError, match="leave the policy out: vfio or spdk is used"):
        fastio.save(STATE, f"{ANY}/x.pt", policy="uring")


def test_a_writer_that_came_while_the_driver_changed_is_noticed(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: Any = namespace_device.BlockStore

    def after_another(devices: Any, limit: int, driver: str, alignment: int) -> Any:
        if driver == "spdk":
            with Volume.open(disk, write=True) as another:
                another.write("another", b"bytes" * 10_000)
        return opened(devices, limit, driver, alignment)

    monkeypatch.setattr(namespace_device, "BlockStore", after_another)
    with pytest.raises(VolumeError, match="another process wrote to it while it changed its driver: save again"):
        fastio.save(STATE, f"{ANY}/x.pt", policy="spdk")
    with Volume.open(disk) as volume:
        assert [entry.name for entry in volume.ls()] == ["another"]
        assert volume.read("another") == b"bytes" * 10_000


def test_the_kernels_driver_is_used_if_it_has_the_controller(tmp_path: Path) -> None:
    folder = tmp_path / "sys/bus/pci/devices" / ADDRESS / "nvme/nvme3"
    folder.mkdir(parents=True)
    with pytest.raises(VolumeError, match="shows no passthrough device of it, expected one such as /dev/ng0n1"):
        drivers.drivers(ADDRESS, tmp_path)
    (folder / "nvme3c3n1").mkdir()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/ng3n1").touch()
    assert drivers.drivers(ADDRESS, tmp_path) == {"nvme": str(tmp_path / "dev/ng3n1")}
