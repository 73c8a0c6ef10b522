"""torch_checkpointing: its manager saves to and loads from fastio's storage."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from required_packages import require

require("torch_checkpointing")
pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]


def manager(kind: str) -> Any:
    from torch_checkpointing import CheckpointManager

    from fastio.integrations.torch_checkpointing import FastStorageConfig

    config = getattr(CheckpointManager.Config, f"with_{kind}_save")()
    config.storage_config = FastStorageConfig()
    return config.build()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_manager_loads_what_it_saved(tmp_path: Path, kind: str) -> None:
    made = manager(kind)
    folder = tmp_path / "step"
    saved = made.save(str(folder), {"model": {"w": torch.arange(100_003.0)}, "losses": {"a": 3}})
    if saved is not None:
        saved.result()
    found = made.load(str(folder), {"model": {"w": torch.zeros(100_003)}, "losses": {"a": 0}})
    made.close()
    assert torch.equal(found["model"]["w"], torch.arange(100_003.0))
    assert found["losses"] == {"a": 3}
    assert os.listdir(tmp_path) == ["step"]
    assert not [name for name in os.listdir(folder) if name.endswith(".tmp")]


def test_stream_leaves_the_old_file_after_an_error(tmp_path: Path) -> None:
    from fastio.integrations.torch_checkpointing import FastStorageConfig

    storage = FastStorageConfig().create_storage()
    storage.write(tmp_path / "a", b"old")
    with contextlib.suppress(ZeroDivisionError), storage.stream_write(tmp_path / "a") as stream:
        stream.write(b"new")
        raise ZeroDivisionError
    assert storage.read(tmp_path / "a") == b"old"
    with storage.stream_write(tmp_path / "a") as stream:
        stream.write(b"new ")
        stream.write(memoryview(b"one"))
    assert (tmp_path / "a").read_bytes() == b"new one"
    storage.mkdir(tmp_path / "x" / "y")
    storage.rename(tmp_path / "x", tmp_path / "z", is_directory=True)
    assert sorted(os.listdir(tmp_path)) == ["a", "z"]
