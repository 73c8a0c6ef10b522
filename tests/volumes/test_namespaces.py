"""Volumes on namespaces, over a native store whose device is a file. Real drivers: native/tests, tests/emulator."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import controllers
import fastio
import simulated
from accelerators import DEVICE
from controllers import WHERE, Controller
from fastio import devices
from fastio.errors import (
    CorruptFileError,
    DeviceInUseError,
    RefusedError,
    ToolUnavailableError,
    TransferError,
    VolumeError,
)
from fastio.volumes import Volume
from objects import same_bits

MIB = 1 << 20
STATE = {
    "large": torch.arange(1_500_000, dtype=torch.float32),
    "odd": torch.arange(100_003, dtype=torch.uint8),
    "packed": torch.arange(60_000).reshape(200, 300).t(),
}


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return controllers.on_file(tmp_path / "disk", monkeypatch)


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


def test_a_dictionary_learns_the_times_of_the_driver(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Volume.create(WHERE).close()
    monkeypatch.setenv("FASTIO_POLICY", "posix")  # which is for files
    for _ in range(3):
        assert fastio.save(STATE, f"{WHERE}/x.pt").reason == "vfio is the only tool that can be used"
        fastio.load(f"{WHERE}/x.pt")
    nbytes = sum(value.nbytes for value in STATE.values())
    for told in (
        fastio.explain(f"{WHERE}/x.pt"),
        fastio.explain(f"{WHERE}/x.pt", "save"),
        fastio.explain(nbytes, "save", folder=WHERE),
    ):
        assert (told.tool, told.context.device) == ("vfio", "cpu, 0000:03:00.0")
        assert [(entry.tool, entry.samples > 0) for entry in told.entries] == [("vfio", True)]
    with pytest.raises(FileNotFoundError, match=r"no object 'y\.pt'"):
        fastio.explain(f"{WHERE}/y.pt", "save")
    assert fastio.save(STATE, f"{WHERE}/x.pt", policy="vfio").reason == "it was asked for"


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


def moved_by_host(disk: Path) -> Callable[[], tuple[int, int, int]]:
    """A function that tells the bytes since the call before: host memory and disk, device to host, host to device."""

    def now() -> tuple[int, int, int]:
        torch.simulated.synchronize()
        by = {"to_host": 0, "to_device": 0}
        for work in simulated.trace():
            if work.engine in by:
                by[work.engine] += work.nbytes
        return Controller.by_host, by["to_host"], by["to_device"]

    before = now()

    def since() -> tuple[int, int, int]:
        nonlocal before
        last, before = before, now()
        found = [one - other for one, other in zip(before, last, strict=True)]
        return found[0], found[1], found[2]

    return since


@pytest.mark.simulated
@pytest.mark.parametrize("late", ["never", "random", "always"])
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_no_payload_of_a_device_is_in_host_memory(disk: Path, suffix: str, late: Any) -> None:
    """The host reaches device memory by copies, which the trace lists, and by the window, which the disk has."""
    simulated.configure_execution(late)
    Volume.create(WHERE).close()
    with Volume.open(WHERE, write=True) as volume:  # so that the object lies in several runs
        for number in range(30):
            volume.write(f"old-{number}", os.urandom(MIB - 8192))
        for number in range(0, 30, 2):
            volume.rm(f"old-{number}")
        others = {entry.name: volume.read(entry.name) for entry in volume.ls()}
    path = f"{WHERE}/x.{suffix}"
    state = {name: value.contiguous() for name, value in STATE.items()} | {"few": torch.arange(7, dtype=torch.int16)}
    on_device = {name: value.to(DEVICE) for name, value in state.items()}
    moved = moved_by_host(disk)
    result = fastio.save(on_device, path)
    assert (result.tool, result.route, result.verified, result.fallbacks) == ("vfio", "peer", True, ())
    by_host, to_host, to_device = moved()
    header = 4 * 4096  # of .safetensors, with the checksums
    assert by_host <= (header if suffix == "safetensors" else 0)
    assert to_host <= 8 * 8 * len(state)  # a checksum of each piece
    assert to_device < 64 << 10  # zip headers, the pickle
    with fastio.record() as transfers:
        found = fastio.load(path, DEVICE)
    by_host, to_host, to_device = moved()
    assert by_host <= 160 << 10  # of 6.5 MB: the ends of the file, where its directory is
    assert (to_host <= 8 * 8 * len(state), to_device) == (True, 0)
    assert [(one.tool, one.route, one.verified, one.fallbacks) for one in transfers] == [("vfio", "peer", True, ())]
    assert all(same_bits(found[name].cpu(), value) for name, value in state.items())
    on_host = fastio.load(path, "cpu")
    assert all(same_bits(on_host[name], value) for name, value in state.items())
    with Volume.open(WHERE) as volume:
        assert {name: volume.read(name) for name in others} == others
        data = volume.read(f"x.{suffix}")
    oracle = safetensors.torch.load if suffix == "safetensors" else torch.load
    found = oracle(data if suffix == "safetensors" else io.BytesIO(data))
    assert all(same_bits(found[name].cpu(), value) for name, value in state.items())
    written = disk.read_bytes()
    at = written.index(STATE["odd"].numpy().tobytes())
    disk.write_bytes(written[: at + 7] + b"\xff" + written[at + 8 :])
    with pytest.raises(CorruptFileError, match="odd"):
        fastio.load(path, DEVICE)


@pytest.mark.simulated
def test_memory_of_several_devices_and_of_the_host_is_one_object(disk: Path) -> None:
    Volume.create(WHERE).close()
    chance = random.Random(3)
    for count in range(6):
        state = {
            str(number): torch.randint(256, (chance.choice((1, 100, 5_000, 70_000, 900_000)),), dtype=torch.uint8)
            for number in range(12)
        }
        places = {name: chance.choice(("cpu", "simulated:0", "simulated:1")) for name in state}
        path = f"{WHERE}/{count % 3}.{chance.choice(('pt', 'safetensors'))}"
        result = fastio.save({name: value.to(places[name]) for name, value in state.items()}, path)
        assert (result.route, result.verified) == ("peer", True)
        for found in (fastio.load(path, "cpu"), fastio.load(path, "simulated:1")):
            assert all(torch.equal(found[name].cpu(), value) for name, value in state.items())


@pytest.mark.simulated
def test_the_result_names_tensors_that_the_host_packs(disk: Path) -> None:
    Volume.create(WHERE).close()
    on_device = {name: value.to(DEVICE) for name, value in STATE.items()}
    result = fastio.save(on_device, f"{WHERE}/x.safetensors")
    note = f"1 tensors of {STATE['packed'].nbytes} bytes were packed in host memory: they are not contiguous"
    assert (result.route, result.fallbacks) == ("peer", (note,))
    found = fastio.load(f"{WHERE}/x.safetensors", DEVICE)
    assert all(torch.equal(found[name].cpu(), value) for name, value in STATE.items())


@pytest.mark.simulated
@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("open_window", "no disk can reach it; fastio-bench doctor lists what a window into the device's memory needs"),
        ("crc32_of_ranges", "the tool 'crc32' is unavailable: no CuPy; install it"),
    ],
)
def test_the_result_says_why_bytes_of_a_device_went_through_host_memory(
    disk: Path, monkeypatch: pytest.MonkeyPatch, method: str, why: str
) -> None:
    error = RefusedError("no disk can reach it")
    if method == "crc32_of_ranges":
        error = ToolUnavailableError("crc32", "no CuPy", "install it")

    def none(*_: object) -> None:
        raise error

    monkeypatch.setattr(type(devices.of("simulated")), method, none)
    Volume.create(WHERE).close()
    on_device = {name: value.to(DEVICE) for name, value in STATE.items()}
    payload = sum(value.nbytes for value in STATE.values())
    result = fastio.save(on_device, f"{WHERE}/x.pt")
    note = f"{payload} bytes on simulated:0 went through host memory: {why}"
    assert (result.route, result.verified, result.fallbacks) == ("namespace", True, (note,))
    with fastio.record() as transfers:
        found = fastio.load(f"{WHERE}/x.pt", DEVICE)
    assert [(one.route, one.verified, one.fallbacks) for one in transfers] == [("namespace", True, (note,))]
    assert all(same_bits(found[name].cpu().contiguous(), value.contiguous()) for name, value in STATE.items())
    if method == "crc32_of_ranges":
        with fastio.record() as transfers:
            fastio.load(f"{WHERE}/x.pt", DEVICE, verify=False)
        assert [(one.route, one.fallbacks) for one in transfers] == [("peer", ())]
    assert not simulated.leaks()


def test_what_cannot_be_opened_says_why() -> None:
    with pytest.raises(TransferError, match="driver vfio") as e:
        Volume.open("vfio:ffff:1f:1f.7")
    assert not isinstance(e.value, RefusedError)
