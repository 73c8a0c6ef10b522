"""Volumes on namespaces, over a native store whose device is a file. Real drivers: native/tests, tests/emulator."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from accelerators import DEVICE
from fastio._native import BlockStore
from fastio.errors import (
    CorruptFileError,
    DeviceInUseError,
    RefusedError,
    ToolUnavailableError,
    TransferError,
    VolumeError,
)
from fastio.volumes import Volume, namespace_device
from objects import same_bits

MIB = 1 << 20
WHERE = "vfio:0000:03:00.0"
STATE = {
    "large": torch.arange(1_500_000, dtype=torch.float32),
    "odd": torch.arange(100_003, dtype=torch.uint8),
    "packed": torch.arange(60_000).reshape(200, 300).t(),
}


class Controller:
    """What a native store of one controller is, on a file. ``failure`` is what the next transfer fails with."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR)
        self.blocks = os.fstat(fd).st_size // 4096
        self.native = BlockStore([(fd, self.blocks)], 0, "threads", 4096)
        self.close = self.native.close
        self.failure: Any = None

    def devices(self) -> list[tuple[str, int, int, str, str]]:
        return [("model", self.blocks, 512, "A drive", "S1")]

    def peek(self, *place: int) -> Any:
        return self.failure or self.native.peek(*place)

    def poke(self, *place: int) -> Any:
        return self.failure or self.native.poke(*place)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "disk"
    path.write_bytes(bytes(32 * MIB))

    def opened(devices: Any, limit: int, driver: str, alignment: int) -> Controller:
        assert (devices, driver) == (["0000:03:00.0"], "vfio")
        return Controller(path)

    monkeypatch.setattr(namespace_device, "BlockStore", opened)
    return path


def test_objects_on_a_namespace_are_saved_loaded_and_verified(disk: Path) -> None:
    Volume.create(WHERE).close()
    with Volume.open(WHERE, write=True) as volume:
        for number in range(30):
            volume.write(f"old-{number}", os.urandom(MIB - 8192))
        for number in range(0, 30, 2):
            volume.rm(f"old-{number}")
        others = {entry.name: volume.read(entry.name) for entry in volume.ls()}
    for suffix in ("pt", "safetensors"):
        result = fastio.save(STATE, f"{WHERE}/run/x.{suffix}")
        assert (result.tool, result.route, result.verified) == ("vfio", "namespace", True)
        with fastio.record() as transfers:
            found = fastio.load(f"{WHERE}/run/x.{suffix}")
        assert [(one.tool, one.verified) for one in transfers] == [("vfio", True)]
        assert all(same_bits(value.contiguous(), STATE[name].contiguous()) for name, value in found.items())
        assert fastio.verify(f"{WHERE}/run/x.{suffix}").checksummed
    module = torch.nn.Linear(300, 200)
    fastio.save_file(module.state_dict(), f"{WHERE}/m.safetensors")
    other = torch.nn.Linear(300, 200)
    fastio.load_model(other, f"{WHERE}/m.safetensors")
    assert torch.equal(other.weight, module.weight)
    with Volume.open(WHERE) as volume:
        assert {name: volume.read(name) for name in others} == others
        assert len(volume.find("run/x.pt").runs) > 1


def test_a_damaged_object_on_a_namespace_is_found(disk: Path) -> None:
    Volume.create(WHERE).close()
    fastio.save(STATE, f"{WHERE}/x.pt")
    image = bytearray(disk.read_bytes())
    image[image.index(STATE["large"][500_000:500_100].numpy().tobytes())] ^= 1
    disk.write_bytes(image)
    for read in (fastio.load, fastio.verify):
        with pytest.raises(CorruptFileError, match=r"x\.pt: record 'data/0' \(tensor 'large'\)"):
            read(f"{WHERE}/x.pt")


def test_a_namespace_that_holds_something_is_refused(disk: Path) -> None:
    Volume.create(WHERE).close()
    with pytest.raises(DeviceInUseError, match=r"serial number S1\): it holds a fastio volume"):
        Volume.create(WHERE)
    with Volume.create(WHERE, force="S1") as volume:
        assert volume.ls() == []
    with pytest.raises(ValueError, match="a volume on a namespace has all of it: leave the size out"):
        Volume.create(WHERE, 1 << 20, force="S1")


def test_another_tool_is_an_error(disk: Path) -> None:
    Volume.create(WHERE).close()
    with pytest.raises(ToolUnavailableError, match="the volume is on an NVMe namespace; leave the policy out: vfio"):
        fastio.save(STATE, f"{WHERE}/x.pt", policy="posix")
    with pytest.raises(VolumeError, match="expected a namespace's passthrough device, such as nvme:/dev/ng0n1"):
        Volume.open("nvme:/dev/null")


def test_a_failed_command_names_the_device_and_the_status(disk: Path) -> None:
    Volume.create(WHERE).close()
    with Volume.open(WHERE, write=True) as volume:
        volume.device._native.failure = (5, True, 0, 7, False, 0x4281)  # type: ignore[attr-defined]
        with pytest.raises(
            TransferError, match=r"driver vfio: write, with NVMe status .*, failed at offset 28672"
        ) as e:
            volume.write("a", bytes(8192))
        assert e.value.filename == WHERE


@pytest.mark.gpu
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_device_memory_is_saved_and_loaded(disk: Path, suffix: str) -> None:
    Volume.create(WHERE).close()
    path = f"{WHERE}/x.{suffix}"
    on_device = {name: value.to(DEVICE) for name, value in STATE.items()} | {"host": torch.arange(5)}
    assert fastio.save(on_device, path).verified
    on_host = fastio.load(path, "cpu")
    assert all(same_bits(on_host[name].contiguous(), value.contiguous()) for name, value in STATE.items())
    with fastio.record() as transfers:
        found = fastio.load(path, DEVICE)
    assert [(one.tool, one.verified) for one in transfers] == [("vfio", True)]
    assert {value.device.type for value in found.values()} == {DEVICE}
    assert all(same_bits(found[name].cpu().contiguous(), value.contiguous()) for name, value in STATE.items())
    written = disk.read_bytes()
    at = written.index(STATE["odd"].numpy().tobytes())
    disk.write_bytes(written[: at + 7] + b"\xff" + written[at + 8 :])
    with pytest.raises(CorruptFileError, match="odd"):
        fastio.load(path, DEVICE)


def test_what_cannot_be_opened_says_why() -> None:
    with pytest.raises(TransferError, match="driver vfio") as e:
        Volume.open("vfio:ffff:1f:1f.7")
    assert not isinstance(e.value, RefusedError)
