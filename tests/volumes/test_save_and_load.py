"""fastio.save, load, verify, safe_open and load_model with objects of volumes: the same bytes, checks and errors."""

from __future__ import annotations

import functools
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from accelerators import DEVICE
from fastio.errors import (
    ChecksumError,
    CorruptFileError,
    VolumeError,
    VolumeFullError,
    VolumeInUseError,
)
from fastio.volumes import Volume
from objects import same_bits

MIB = 1 << 20
TOOLS = ["uring", "posix", "memory", "torch"]
STATE: dict[str, Any] = {
    "large": torch.arange(700_000, dtype=torch.float32),
    "odd": torch.arange(100_003, dtype=torch.uint8),
    "packed": torch.arange(60_000).reshape(200, 300).t(),
    "few": [torch.ones(3), "text", {"step": 7}],
}
TENSORS = {name: value for name, value in STATE.items() if isinstance(value, torch.Tensor)}


def equal(one: Any, other: Any) -> bool:
    """Whether two objects are equal; formats other than pt keep no order of names, and no strides."""
    if isinstance(one, torch.Tensor):
        return same_bits(one.contiguous(), other.contiguous())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(value, other[name]) for name, value in one.items())
    return all(map(equal, one, other)) if isinstance(one, list) else bool(one == other)


@pytest.fixture
def volume(tmp_path: Path) -> str:
    path = tmp_path / "volume"
    Volume.create(path, 16 * MIB).close()
    return f"file:{path}"


@functools.cache
def used(pieces: bool) -> bytes:
    """A volume whose free blocks hold what other objects left; with ``pieces``, they lie between objects."""
    with tempfile.TemporaryDirectory() as folder:
        with Volume.create(f"{folder}/volume", 16 * MIB) as writer:
            for number in range(30):
                writer.write(f"old-{number}", os.urandom(MIB // 2))
            for number in range(1 if pieces else 0, 30, 2 if pieces else 1):
                writer.rm(f"old-{number}")
        return Path(folder, "volume").read_bytes()


def others(volume: str) -> dict[str, bytes]:
    with Volume.open(volume) as reader:
        return {entry.name: reader.read(entry.name) for entry in reader.ls()}


@pytest.mark.parametrize("pieces", [False, True], ids=["one run", "several runs"])
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("suffix", ["pt", "safetensors", "npy"])
def test_an_object_has_the_bytes_of_a_file_and_loads_by_each_tool(
    volume: str, tmp_path: Path, tool: str, suffix: str, pieces: bool
) -> None:
    obj: Any = {"pt": STATE, "safetensors": TENSORS, "npy": STATE["large"]}[suffix]
    if suffix != "pt" and tool == "torch":
        pytest.skip("torch writes .pt alone")
    (tmp_path / "volume").write_bytes(used(pieces))
    before = others(volume)
    result = fastio.save(obj, f"{volume}/run/x.{suffix}", policy=tool, durable=False)
    assert result.tool == tool
    assert result.durable
    fastio.save(obj, tmp_path / f"x.{suffix}", policy=tool)
    after = others(volume)
    found, expected = after.pop(f"run/x.{suffix}"), (tmp_path / f"x.{suffix}").read_bytes()
    if suffix == "pt":  # the zip's folder has the file's name, and a pickle memoizes by identity
        assert len(found) >= len(expected) - 64
        (tmp_path / "copy.pt").write_bytes(found)
        assert equal(torch.load(tmp_path / "copy.pt"), obj)
    else:
        assert found == expected
    assert after == before
    for by in TOOLS if suffix == "pt" else TOOLS[:3]:
        assert equal(fastio.load(f"{volume}/run/x.{suffix}", policy=by), obj)
    assert fastio.verify(f"{volume}/run/x.{suffix}").format == suffix


def test_a_damaged_object_is_found(volume: str, tmp_path: Path) -> None:
    fastio.save(STATE, f"{volume}/x.pt")
    fastio.save(TENSORS, f"{volume}/x.safetensors")
    image = bytearray((tmp_path / "volume").read_bytes())
    needle = STATE["large"][500_000:500_100].numpy().tobytes()
    for _ in range(2):
        image[image.index(needle)] ^= 1
    (tmp_path / "volume").write_bytes(image)
    with pytest.raises(CorruptFileError, match=r"volume/x\.pt: record 'data/0' \(tensor 'large'\): its"):
        fastio.load(f"{volume}/x.pt")
    with pytest.raises(CorruptFileError, match=r"volume/x\.pt: record 'data/0' \(tensor 'large'\): its"):
        fastio.verify(f"{volume}/x.pt")
    with pytest.raises(ChecksumError, match=r"volume/x\.safetensors: tensor 'large'"):
        fastio.load(f"{volume}/x.safetensors")


def test_models_are_read_from_objects(volume: str) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.Linear(200, 7))
    fastio.save_file(module.state_dict(), f"{volume}/m.safetensors")
    fastio.save(module.state_dict(), f"{volume}/m.pt")
    assert equal(fastio.load_file(f"{volume}/m.safetensors"), dict(module.state_dict()))
    for suffix in ("safetensors", "pt"):
        other = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.Linear(200, 7))
        fastio.load_model(other, f"{volume}/m.{suffix}")
        assert equal(dict(other.state_dict()), dict(module.state_dict()))
        with fastio.safe_open(f"{volume}/m.{suffix}", framework="pt") as f:
            assert equal(f.get_tensor("0.weight"), module[0].weight.detach())
            assert equal(f.get_slice("0.weight")[5:9, 3:7], module[0].weight.detach()[5:9, 3:7])
            assert equal(f.get_slice("0.weight")[:, 3:7], module[0].weight.detach()[:, 3:7])


def test_a_reader_of_tensors_gets_an_error_when_the_object_was_replaced(volume: str) -> None:
    fastio.save_file(TENSORS, f"{volume}/m.safetensors")
    with fastio.safe_open(f"{volume}/m.safetensors", framework="pt") as f:
        fastio.save_file({name: value + 1 for name, value in TENSORS.items()}, f"{volume}/m.safetensors")
        with pytest.raises(VolumeError, match="another process has replaced it while it was read: read it again"):
            f.get_tensor("large")


def test_keys_mapped_pages_shared_memory_and_the_legacy_format(volume: str) -> None:
    fastio.save(STATE, f"{volume}/x.pt")
    assert equal(fastio.load(f"{volume}/x.pt", keys=["packed"]), {"packed": STATE["packed"]})
    assert equal(fastio.load(f"{volume}/x.pt", mmap=True), STATE)
    assert equal(fastio.load(f"{volume}/x.pt", into="shared"), STATE)
    fastio.save(STATE, f"{volume}/old.pt", _use_new_zipfile_serialization=False)
    assert equal(fastio.load(f"{volume}/old.pt"), STATE)


def test_a_save_replaces_the_object_of_that_name(volume: str, tmp_path: Path) -> None:
    for step in range(12):  # each has a fourth of the volume's room
        fastio.save({"weight": torch.full((MIB,), float(step))}, f"{volume}/last.pt")
        assert fastio.load(f"{volume}/last.pt")["weight"][-1] == step
    assert list(others(volume)) == ["last.pt"]


def test_a_failed_save_leaves_the_old_object_and_all_room(volume: str) -> None:
    fastio.save(STATE, f"{volume}/x.pt")
    with Volume.open(volume) as reader:
        free = reader.free_nbytes
    with pytest.raises(VolumeFullError, match=r"x\.pt needs 40 MiB \(41,97\d,\d{3} bytes\), 12\.\d MiB"):
        fastio.save({"weight": torch.zeros(10 * MIB)}, f"{volume}/x.pt", policy="posix")
    with pytest.raises(VolumeFullError, match=r"x\.pt needs 40 MiB"):
        fastio.save({"weight": torch.zeros(10 * MIB)}, f"{volume}/x.pt", policy="torch")

    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fastio.save({"weight": torch.zeros(2 * MIB)}, f"{volume}/x.pt", progress=interrupted)
    assert equal(fastio.load(f"{volume}/x.pt"), STATE)
    with Volume.open(volume, write=True) as writer:
        assert writer.free_nbytes == free


def test_writers_wait_for_each_other(volume: str, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = [
        threading.Thread(target=fastio.save, args=({"weight": torch.full((1000,), float(rank))}, f"{volume}/{rank}.pt"))
        for rank in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in range(4):
        assert fastio.load(f"{volume}/{rank}.pt")["weight"][0] == rank
    monkeypatch.setattr("fastio.volumes.object_file.WAIT_SECONDS", 0.05)
    with Volume.open(volume, write=True), pytest.raises(VolumeInUseError, match=r"another writer has it after 0\.05 s"):
        fastio.save(STATE, f"{volume}/x.pt")


def test_paths_that_name_no_object_are_errors(volume: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"The volume has no object 'x\.pt'; `fastio ls"):
        fastio.load(f"{volume}/x.pt")
    with pytest.raises(VolumeError, match=r"there is no volume on this path: expected file:VOLUME/NAME"):
        fastio.save(STATE, f"file:{tmp_path}/missing/x.pt")
    with pytest.raises(VolumeError, match="expected the name of an object behind the volume's"):
        fastio.save(STATE, volume)
    (tmp_path / "plain.pt").write_bytes(b"x" * 100_000)
    with pytest.raises(VolumeError, match="it is no volume: it begins with b'xxxxxxxx'"):
        fastio.save(STATE, f"file:{tmp_path}/plain.pt/x.pt")
    assert others(volume) == {}


@pytest.mark.parametrize("name", ["x" * 1020 + ".pt", "a\0b.pt", "a/.", "..", "é\n.pt", "run/"])
def test_what_is_saved_by_any_name_is_loaded_by_it(volume: str, name: str) -> None:
    for policy in TOOLS:
        fastio.save(STATE, f"{volume}/{name}", policy=policy)
        assert equal(fastio.load(f"{volume}/{name}"), STATE)
    assert fastio.verify(f"{volume}/{name}").checksummed


def test_a_folder_is_no_part_of_a_volume(volume: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be made in the working folder, in one that is named ``file:``."""
    monkeypatch.chdir(tmp_path)
    path = f"{volume}/run"
    fastio.save_file(TENSORS, tmp_path / "model.safetensors")
    for call in (
        lambda: fastio.Checkpointer(path),
        lambda: fastio.convert(tmp_path / "model.safetensors", f"{path}/model.pt"),
        lambda: fastio.save_model(torch.nn.Linear(2, 3), path),
        lambda: fastio.distributed.Writer(path),
        lambda: fastio.distributed.Reader(path),
        lambda: fastio.distributed.HuggingFaceWriter(path),
        lambda: fastio.distributed.HuggingFaceReader(path),
        lambda: fastio.distributed.HuggingFaceWriter("run").reset(path),
        lambda: fastio.distributed.consolidate(tmp_path, path),
    ):
        with pytest.raises(VolumeError, match="cannot be in a volume, expected a path in a filesystem"):
            call()
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors", "volume"]


def test_a_conversion_does_not_replace_the_volume_of_its_source(tmp_path: Path) -> None:
    Volume.create(path := f"{tmp_path}/volume.pt", 16 * MIB).close()
    fastio.save(TENSORS, name := f"file:{path}/state.pt")
    with pytest.raises(fastio.UnsupportedError, match="this is a file of the source"):
        fastio.convert(name, path, force=True)
    assert equal(fastio.load(name), TENSORS)


def test_a_path_object_and_a_relative_path_name_an_object(volume: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    fastio.save(STATE, Path("file:volume/a/x.pt"))
    assert equal(fastio.load(f"{volume}/a/x.pt"), STATE)
    fastio.save(STATE, "./file:x.pt")  # a file's name may begin so
    assert (tmp_path / "file:x.pt").is_file()


@pytest.mark.gpu
def test_device_memory_goes_to_an_object_and_back(tmp_path: Path) -> None:
    (tmp_path / "volume").write_bytes(used(pieces=True))
    where = f"file:{tmp_path}/volume"
    before = others(where)
    on_device = {name: value.to(DEVICE) for name, value in TENSORS.items()}
    for suffix in ("pt", "safetensors"):
        result = fastio.save(on_device, f"{where}/x.{suffix}", policy="pinned")
        assert result.tool == "pinned"
        found = fastio.load(f"{where}/x.{suffix}", map_location=DEVICE, policy="pinned")
        assert found["large"].device.type == DEVICE
        assert equal({name: value.cpu() for name, value in found.items()}, TENSORS)
        after = others(where)
        del after[f"x.{suffix}"]
        assert after == before
        with Volume.open(where, write=True) as writer:
            writer.rm(f"x.{suffix}")
