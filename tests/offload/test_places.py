"""Where ``Offload(store=...)`` may lie: folders, devices, and devices by a driver of their own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import fastio
from fastio.errors import FastIOError
from fastio.offload.arguments import opened
from fastio.offload.stores.block_store import BlockStore
from fastio.offload.stores.tool_store import ToolStore


@pytest.mark.parametrize("place", ["nvme:/dev/fastio-absent", "vfio:0000:ff:1f.7", "spdk:trtype=TCP traddr=192.0.2.1"])
@pytest.mark.parametrize("policy", ["all", "fastensor"])
def test_a_driver_before_a_colon_is_never_a_folder(
    place: str, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.makedirs(place)
    with pytest.raises(FastIOError):
        opened(place, policy)
    assert os.listdir(place) == []
    store, _ = opened(f"./{place}", "all")  # and that is how one names the folder
    assert isinstance(store, BlockStore)
    store.close()


@pytest.mark.parametrize(
    "places",
    [
        ["nvme:/dev/ng0n1", "vfio:0000:03:00.0"],
        ["vfio:0000:03:00.0", "spdk:trtype=PCIe traddr=0000:04:00.0"],
        ["nvme:/dev/ng0n1", "/scratch"],
    ],
)
def test_one_store_has_one_driver(places: list[str]) -> None:
    with pytest.raises(ValueError, match="one driver") as caught:
        fastio.Offload(store=places)
    assert all(place in str(caught.value) for place in places)


def test_what_force_may_be(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="force is a bool: expected the serial number"):
        fastio.Offload(store=tmp_path, force=True)  # type: ignore[arg-type]
    with BlockStore(tmp_path) as store, pytest.raises(ValueError, match="open already"):
        fastio.Offload(store=store, force="S1")
    offload = fastio.Offload(store=tmp_path, force="S1")  # nothing there needs it
    offload.close()


def test_fastensors_files_lie_in_a_folder_as_before(tmp_path: Path) -> None:
    for place in (tmp_path, str(tmp_path)):
        store, ours = opened(place, "fastensor")
        assert ours
        assert isinstance(store, ToolStore)
        store.close()


def test_a_device_that_holds_something_is_not_taken(tmp_path: Path) -> None:
    """A loop device with a filesystem on it, by the front door."""
    image = tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(16 << 20)
        file.seek(0x438)
        file.write(b"\x53\xef")
    try:
        child = subprocess.run(["losetup", "-f", "--show", image], check=False, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("losetup is not installed")
    if child.returncode != 0:
        pytest.skip(f"no loop device: {child.stderr.strip()}")
    device = child.stdout.strip()
    try:
        before = image.read_bytes()
        for force in (None, "S1"):
            with pytest.raises(fastio.DeviceInUseError, match="an ext2, ext3 or ext4 filesystem"):
                fastio.Offload(store=device, force=force)
        assert image.read_bytes() == before
        image.write_bytes(bytes(16 << 20))
        offload = fastio.Offload(store=device)
        offload.close()
    finally:
        subprocess.run(["losetup", "-d", device], check=True)
