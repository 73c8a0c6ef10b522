"""Files at remote places are saved, loaded, checked, listed and converted as those of this machine."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path

import fsspec
import numpy as np
import pytest
import safetensors.torch
import torch

import fastio
from commands import run
from remote_places import equal, names_below

STATE = {"weight": torch.arange(70_000.0).reshape(700, 100), "bias": torch.ones(3, dtype=torch.bfloat16)}


@pytest.mark.parametrize("name", ["it.pt", "it.safetensors"])
def test_a_saved_state_is_loaded(place: str, name: str) -> None:
    url = f"{place}/{name}"
    result = fastio.save(STATE, url)
    assert (result.path, result.durable, result.verified) == (url, True, True)
    assert any(note.startswith("uploaded in") for note in result.fallbacks)
    with fastio.record() as transfers:
        assert equal(fastio.load(url), STATE)
    assert (transfers[0].path, transfers[0].verified) == (url, True)
    assert equal(fastio.load(url, mmap=True), STATE)
    assert fastio.verify(url).checksummed
    fastio.save({"other": torch.zeros(2)}, url)
    assert equal(fastio.load(url), {"other": torch.zeros(2)})
    assert names_below(place) == {name}


@pytest.mark.parametrize("name", ["*.pt", "a?b.pt", "a[1].pt", "a{b}.pt", "a b%20#ü.pt"])
def test_odd_characters_are_no_patterns(place: str, name: str) -> None:
    fastio.save({"other": torch.zeros(2)}, f"{place}/axb.pt")
    fastio.save(STATE, f"{place}/{name}")
    assert names_below(place) == {"axb.pt", name}
    assert equal(fastio.load(f"{place}/{name}"), STATE)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_names_longer_than_those_of_files(suffix: str) -> None:
    """A key of an object store may have 1,024 bytes."""
    url = f"memory://bucket/{'ü' * 400}{suffix}"
    fastio.save(STATE, url)
    assert equal(fastio.load(url), STATE)
    data = fsspec.filesystem("memory").cat(url)
    assert equal(torch.load(io.BytesIO(data)) if suffix == ".pt" else safetensors.torch.load(data), STATE)


@pytest.mark.parametrize("name", [".", ".."])
def test_a_folders_name_is_no_file(place: str, name: str) -> None:
    with pytest.raises(
        fastio.UnsupportedError, match=f"/{re.escape(name)}: it names a folder, expected the URL of a file"
    ):
        fastio.save(STATE, f"{place}/{name}")


def test_an_array_of_numpy(place: str) -> None:
    url = f"{place}/it.npy"
    fastio.save(STATE["weight"], url)
    assert torch.equal(fastio.load(url), STATE["weight"])


def test_what_torch_alone_loads(place: str) -> None:
    url = f"{place}/it.pt"
    fastio.save(STATE, url, _use_new_zipfile_serialization=False)
    assert equal(fastio.load(url), STATE)


def test_functions_of_safetensors(place: str) -> None:
    url = f"{place}/it.safetensors"
    fastio.save_file(STATE, url, metadata={"by": "hand"})
    assert equal(fastio.load_file(url), STATE)
    with fastio.safe_open(url) as file:
        assert file.metadata()["by"] == "hand"
        assert torch.equal(file.get_slice("weight")[5:9], STATE["weight"][5:9])
        assert equal(dict(file.tensors()), STATE)
    with fastio.safe_open(url, framework="np") as file:
        assert np.array_equal(file.get_tensor("weight"), STATE["weight"].numpy())


def test_checksums_beside_a_file_are_used(tmp_path: Path) -> None:
    local, folder = tmp_path / "it.safetensors", tmp_path / "place"
    folder.mkdir()
    safetensors.torch.save_file(STATE, local)
    fastio.seal(local)
    for file in tmp_path.glob("it.safetensors*"):
        (folder / file.name).write_bytes(file.read_bytes())
    url = f"file://{folder}/it.safetensors"
    with fastio.record() as transfers:
        fastio.load_file(url)
    assert transfers[0].verified
    damaged = bytearray(local.read_bytes())
    damaged[-1] ^= 1
    (folder / local.name).write_bytes(damaged)
    with pytest.raises(fastio.ChecksumError):
        fastio.load_file(url)


def test_conversion_and_commands(place: str, tmp_path: Path) -> None:
    url, local = f"{place}/it.safetensors", tmp_path / "it.pt"
    fastio.save(STATE, url)
    assert fastio.convert(url, local).verified
    assert equal(torch.load(local), STATE)
    assert "weight" in run("inspect", url).output
    assert "verified" in run("verify", url).output
    assert fastio.diff(url, local).equal
    assert fastio.explain(url, "load").tool
    run("cp", url, tmp_path / "copy.safetensors")
    assert equal(safetensors.torch.load_file(tmp_path / "copy.safetensors"), STATE)


@pytest.mark.parametrize(
    "call",
    [
        lambda url: fastio.convert(url, f"{url}.pt"),
        fastio.seal,
        lambda url: fastio.distributed.consolidate(url, "folder"),
        fastio.distributed.Writer,
    ],
    ids=["convert to", "seal", "consolidate", "DCP"],
)
def test_what_takes_only_files_of_this_machine_says_so(place: str, call: object) -> None:
    url = f"{place}/it.safetensors"
    fastio.save(STATE, url)
    with pytest.raises(fastio.UnsupportedError, match="expected a path on this machine"):
        call(url)  # type: ignore[operator]
    assert names_below(place) == {"it.safetensors"}


def test_names_of_volumes_and_of_files_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = tmp_path / "volume"
    run("volume", "create", volume, "8MiB")
    fastio.save(STATE, f"file:{volume}/it.pt")
    assert equal(fastio.load(f"file:{volume}/it.pt"), STATE)
    with pytest.raises(fastio.VolumeError):
        fastio.load("file:missing/it.pt")
    monkeypatch.chdir(tmp_path)
    fastio.save(STATE, "run::1.pt")
    assert equal(torch.load("run::1.pt"), STATE)


def test_chains_of_filesystems(tmp_path: Path) -> None:
    fastio.save(STATE, "ranged://bucket/chain/it.pt")
    for chain in ("simplecache", "filecache"):
        assert equal(fastio.load(f"{chain}::ranged://bucket/chain/it.pt"), STATE)
    fastio.save(STATE, "simplecache::ranged://bucket/chain/other.pt")
    assert names_below("ranged://bucket/chain") == {"it.pt", "other.pt"}
    assert equal(fastio.load("ranged://bucket/chain/other.pt"), STATE)
    torch.save(STATE, tmp_path / "it.pt")
    with zipfile.ZipFile(tmp_path / "it.zip", "w") as archive:
        archive.write(tmp_path / "it.pt", "inside.pt")
    assert equal(fastio.load(f"zip://inside.pt::file://{tmp_path}/it.zip"), STATE)
