"""``fastio seal``: what it writes and says, its exit status, and ``fastio verify`` afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import safetensors.torch
import torch

import fastio
from commands import run

INDEX = "model.safetensors.index.json"


def shards(folder: Path) -> list[Path]:
    """Two shards as another program writes them, and their index."""
    weight_map = {}
    for number, name in enumerate("ab"):
        file = f"model-0000{number + 1}-of-00002.safetensors"
        safetensors.torch.save_file({name: torch.full((100,), number)}, folder / file)
        weight_map[name] = file
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return [folder / file for file in weight_map.values()]


def test_a_folder_of_shards_is_sealed_and_verified(tmp_path: Path) -> None:
    files = shards(tmp_path)
    assert "not verified" in run("verify", tmp_path).stdout
    said = run("seal", tmp_path).stdout.splitlines()
    assert [line.split(": ")[:3] for line in said] == [
        [str(file), "sealed", f"CRC-32s of 1 tensor, 800 B, are in {file}.fastio-checksums.json"] for file in files
    ]
    assert all("match their CRC-32s" in line for line in run("verify", tmp_path).stdout.splitlines())
    assert "with CRC-32s" in run("inspect", tmp_path).stdout
    (first, _) = json.loads(run("seal", tmp_path / INDEX, "--hashes", "--json").stdout)
    assert first == {
        "path": str(files[0]),
        "sidecar": f"{files[0]}.fastio-checksums.json",
        "tensors": 1,
        "nbytes": 800,
        "hashed": True,
        "status": "sealed",
        "problem": "",
    }
    assert "CRC-32s and SHA-256s" in run("verify", files[0]).stdout
    assert [one["hashed"] for one in json.loads(run("verify", tmp_path, "--json").stdout)] == [True, True]
    damaged = bytearray(files[1].read_bytes())
    damaged[-3] ^= 1
    files[1].write_bytes(damaged)
    for command in ("verify", "seal", "diff"):
        result = run(
            command, tmp_path, *([tmp_path] if command == "diff" else []), status=2 if command == "diff" else 1
        )
        assert "'b'" in result.stderr
        assert "CRC-32" in result.stderr
    assert f"{files[0]}: sealed" in run("seal", tmp_path, status=1).stdout


def test_what_cannot_be_sealed(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "a.pt")
    safetensors.torch.save_file({"a": torch.ones(3)}, tmp_path / "good.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "good.safetensors").read_bytes()[:-1])
    result = run("seal", tmp_path / "a.pt", tmp_path / "missing", tmp_path / "good.safetensors", status=2)
    assert result.stderr.count("\n") == 2
    assert "expected a file of safetensors" in result.stderr
    assert "missing: there is no such file" in result.stderr
    assert "good.safetensors: sealed" in result.stdout
    run("seal", tmp_path / "cut.safetensors", tmp_path / "a.pt", status=1)
    names = [tmp_path / name for name in ("cut.safetensors", "missing", "good.safetensors", "a.pt")]
    outcomes = json.loads(run("seal", *names, "--json", status=1).stdout)
    assert [one["path"] for one in outcomes] == list(map(str, names))
    assert [one["status"] for one in outcomes] == ["damaged", "unreadable", "sealed", "unreadable"]
    assert all(one["problem"].startswith(one["path"]) == (one["status"] != "sealed") for one in outcomes)
    assert {path.name for path in tmp_path.glob("*.json")} == {"good.safetensors.fastio-checksums.json"}


def test_copied_checksums_are_replaced_by_a_seal(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    safetensors.torch.save_file({"a": torch.ones(3)}, path, {"fastio.checksums": '{"version":1,"table":"00000000"}'})
    assert "of other tensors" in run("verify", path, status=1).stderr
    listed = run("inspect", path).stdout
    assert "note: its checksums cannot be used" in listed
    assert "metadata" not in listed
    run("seal", path)
    assert "verified" in run("verify", path).stdout
    (tmp_path / "a.safetensors.fastio-checksums.json").write_text('{"version": 2}')  # a newer fastio's
    assert "note: its checksums cannot be used" in run("inspect", path).stdout
    assert "install a newer fastio" in run("verify", path, status=2).stderr


def test_a_damaged_header_is_not_sealed(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    fastio.save_file({"w": torch.arange(1000.0)}, path)
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"I32"'))
    for command in ("seal", "verify"):
        assert "the file was damaged after fastio wrote it" in run(command, path, status=1).stderr
    assert [file.name for file in tmp_path.iterdir()] == ["x.safetensors"]
