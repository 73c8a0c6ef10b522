"""What dictionaries learn is kept apart by the model of the device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import fastio
from fastio import devices, dicts
from fastio.devices.simulated import torch_module


@pytest.fixture
def dictionaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of dictionaries, and two devices of two models."""
    monkeypatch.setenv("FASTIO_DICTIONARY_DIR", str(tmp_path / "dictionaries"))
    models = {0: "fast", 1: "slow"}
    monkeypatch.setattr(torch_module, "get_device_name", lambda d: models[torch.device(d).index], raising=False)
    devices.kinds._identity.cache_clear()
    return tmp_path / "dictionaries"


def test_identity_is_that_of_the_device_with_the_tensors(dictionaries: Path) -> None:
    there = [torch.device("simulated", 0), torch.device("simulated", 1)]
    assert devices.identity() == devices.identity(torch.device("cpu")) == "cpu"
    assert devices.identity(torch.device("simulated")) == "simulated fast", "the current device"
    assert [devices.identity(device) for device in there] == ["simulated fast", "simulated slow"]
    assert devices.identity(torch.device("cpu"), there[1]) == "simulated slow"


def test_times_of_two_models_are_learned_apart(dictionaries: Path, tmp_path: Path) -> None:
    for device in ("simulated:0", "simulated:1", "cpu"):
        fastio.save({"a": torch.ones(300_000).to(device)}, tmp_path / "a.pt")
        fastio.load(tmp_path / "a.pt", map_location=device)
    dicts.flush()
    seen = set()
    for file in dictionaries.glob("*.json"):
        for entry in json.loads(file.read_text(encoding="utf-8"))["contexts"]:
            seen.add((entry["op"], entry["device"]))
    assert seen == {(op, device) for op in ("save", "load") for device in ("cpu", "simulated fast", "simulated slow")}
