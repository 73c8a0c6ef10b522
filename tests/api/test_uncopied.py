"""Objects that hold files and threads refuse copies and pickles, and say what to do instead."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import fastio
from fastio.offload import BlockStore, ToolStore
from fastio.volumes import Volume


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_are_refused_with_the_cure(tmp_path: Path, how: Callable[[object], object]) -> None:
    model = nn.Linear(3, 3)
    fastio.save_file(dict(model.state_dict()), tmp_path / "it.safetensors")
    offload = fastio.Offload(model, store=tmp_path)
    with (
        fastio.Checkpointer(tmp_path / "run") as checkpointer,
        fastio.Hybrid(model, torch.optim.SGD(model.parameters()), device="cpu") as hybrid,
        fastio.safe_open(tmp_path / "it.safetensors") as tensors,
        fastio.safe_open(tmp_path / "it.safetensors", framework="np") as arrays,
        BlockStore(tmp_path) as blocks,
        ToolStore(tmp_path) as files,
        Volume.create(tmp_path / "volume", "1MiB") as volume,
    ):
        handle = checkpointer.save(1, {"model": model})
        for one in (offload, hybrid, checkpointer, handle, tensors, arrays, blocks, files, volume):
            name = type(one).__name__
            with pytest.raises(TypeError, match=f"an? {name} cannot be copied or pickled, .*: make another one"):
                how(one)
    model.offload = offload
    with pytest.raises(fastio.UnpicklableError, match=r"an Offload cannot be copied or pickled, .*: make another one"):
        fastio.save(model, tmp_path / "model.pt")
    offload.close()
