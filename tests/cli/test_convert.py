"""``fastio convert``: what it says, and its exit status."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import safetensors.torch
import torch

import commands

run = partial(commands.run, "convert")


def test_a_file_and_back(tmp_path: Path) -> None:
    shared = torch.randn(30, 20)
    torch.save({"a": torch.ones(3), "tied": shared, "it": shared}, tmp_path / "a.pt")
    lines = run(tmp_path / "a.pt", tmp_path / "a.safetensors").stdout.splitlines()
    assert lines[0].startswith(f"{tmp_path}/a.safetensors: 2 tensors, 2.36 KiB, in ")
    assert lines[0].endswith("; source compared with its checksums")
    assert lines[1:] == ["tied: tied is it"]
    said = json.loads(run(tmp_path / "a.safetensors", tmp_path / "b.pt", "--json").stdout)
    assert said["files"] == [f"{tmp_path}/b.pt"]
    assert (said["tensors"], said["verified"], said["tied"]) == (2, True, {})
    assert torch.equal(torch.load(tmp_path / "b.pt")["it"], shared)
    run(tmp_path / "b.pt", f"{tmp_path}/shards", "--max-shard-size", "1KB")
    assert len(os.listdir(tmp_path / "shards")) == 3
    run(tmp_path / "shards", tmp_path / "it.npy", "--key", "it")


def test_errors(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "a.pt")
    safetensors.torch.save_file({"a": torch.ones(3)}, tmp_path / "a.safetensors")
    said = run(tmp_path / "a.pt", tmp_path / "a.safetensors", status=2).stderr
    assert said.startswith(f"fastio: {tmp_path}/a.safetensors: there is such a file already")
    run(tmp_path / "a.pt", tmp_path / "a.safetensors", "--force")
    assert "expected a name that ends in" in run(tmp_path / "a.pt", tmp_path / "a.xyz", status=2).stderr
    assert "no tensor 'b'" in run(tmp_path / "a.safetensors", tmp_path / "b.pt", "--key", "b", status=2).stderr
    assert "a.pt: this is a file" in run(tmp_path / "a.pt", tmp_path / "a.pt", "--force", status=2).stderr
    said = run(tmp_path / "none.pt", tmp_path / "b.pt", status=2).stderr
    assert said.startswith(f"fastio: {tmp_path}/none.pt: there is no such file")
    torch.save({"a": Path("p")}, tmp_path / "object.pt")
    said = run(tmp_path / "object.pt", tmp_path / "b.pt", status=2).stderr.splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"fastio: {tmp_path}/object.pt: it holds what weights_only=True refuses")
    torch.save({"a": 3}, tmp_path / "number.pt")
    said = run(tmp_path / "number.pt", tmp_path / "b.pt", status=2).stderr.splitlines()
    assert said[0].startswith(f"fastio: {tmp_path}/number.pt: its object is no dict of tensors: 'a' is of type int")
    assert not (tmp_path / "b.pt").exists()
