"""The places that ``Offload(store=...)`` accepts: folders, devices, and devices of user-level drivers."""

from __future__ import annotations

import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from fastio.errors import FastIOError, FolderMissingError, TransferError, UnsupportedError
from fastio.offload.planning.schedule import PolicyName
from fastio.offload.stores.block_store import BlockStore
from fastio.offload.stores.resolve_store import resolve_store
from fastio.offload.stores.tool_store import ToolStore


@pytest.mark.parametrize("place", ["nvme:/dev/fastio-absent", "vfio:0000:ff:1f.7", "spdk:trtype=TCP traddr=192.0.2.1"])
@pytest.mark.parametrize("policy", ["all", "fastensor"])
def test_driver_prefix_is_never_read_as_a_folder(
    place: str, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.makedirs(place)
    with pytest.raises(FastIOError):
        resolve_store(place, policy)
    assert os.listdir(place) == []
    store, _ = resolve_store(f"./{place}", "all")  # this names the folder
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
def test_places_of_several_drivers_raise_an_error(places: list[str]) -> None:
    with pytest.raises(ValueError, match="one driver") as caught:
        fastio.Offload(store=places)
    assert all(place in str(caught.value) for place in places)


def test_invalid_force_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="force is a bool: expected the serial number"):
        fastio.Offload(store=tmp_path, force=True)  # type: ignore[arg-type]
    with BlockStore(tmp_path) as store, pytest.raises(ValueError, match="open already"):
        fastio.Offload(store=store, force="S1")
    offload = fastio.Offload(store=tmp_path, force="S1")  # a folder ignores it
    offload.close()


@pytest.mark.parametrize("policy", ["all", "fastensor"])
def test_missing_folder_is_named_as_the_stores(policy: PolicyName, tmp_path: Path) -> None:
    with pytest.raises(FolderMissingError, match=r"the store's folder does not exist; make it first: .*nope") as caught:
        fastio.Offload(store=tmp_path / "nope", policy=policy)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("policy", ["all", "fastensor"])
def test_place_that_cannot_be_made_is_not_to_be_made(policy: PolicyName) -> None:
    with pytest.raises(
        UnsupportedError, match=r"s3://\*\*\*@b/x: a store cannot be at a remote place, expected a folder"
    ):
        fastio.Offload(store="s3://me:secret@b/x", policy=policy)
    if policy == "all":
        with pytest.raises(TransferError, match=r"creating a file in the folder of the store failed.*: '/proc'"):
            fastio.Offload(store="/proc", policy=policy)


def test_place_without_its_keyword_is_told_the_keyword(tmp_path: Path) -> None:
    call: Any = fastio.Offload
    for arguments in ((), (str(tmp_path),), (torch.nn.Linear(2, 2),)):
        with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'store'"):
            call(*arguments, budget="64MiB")
    with pytest.raises(TypeError, match="store is a NoneType: expected a folder"):
        call(store=None)


def test_fastensor_with_one_folder_opens_a_tool_store(tmp_path: Path) -> None:
    for place in (tmp_path, str(tmp_path)):
        store, ours = resolve_store(place, "fastensor")
        assert ours
        assert isinstance(store, ToolStore)
        store.close()


def test_device_with_contents_is_refused(tmp_path: Path) -> None:
    """A loop device with a filesystem on it, through the public class."""
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
