"""Tensors sharded over processes, with one Checkpointer for each process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fastio.checkpoint import Checkpointer
from states import ramp


@pytest.fixture
def mesh() -> Iterator[Any]:
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    with tempfile.TemporaryDirectory() as folder:
        distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        yield init_device_mesh("cpu", (1,))
        distributed.destroy_process_group()


@pytest.mark.parametrize("weights_only", [True, False])
def test_dtensors_are_restored_in_place(tmp_path: Path, mesh: Any, weights_only: bool) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    def make(seed: int) -> dict[str, Any]:
        return {"d": distribute_tensor(ramp(seed, 6), mesh, [Shard(0)])}

    live = make(2)
    held = live["d"]
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, make(1))
        restored = checkpointer.restore(weights_only=weights_only)
        checkpointer.restore(into=live, weights_only=weights_only)
    assert restored is not None
    for found in (restored.state["d"], live["d"]):
        assert torch.equal(found.full_tensor(), ramp(1, 6))
        assert found.placements == held.placements
    assert live["d"] is held


@pytest.mark.parametrize("incremental", [False, True])
def test_fsdp_training_resumes_exactly(tmp_path: Path, mesh: Any, incremental: bool) -> None:
    from torch.distributed.fsdp import fully_shard

    def make(seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2))
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        return {"model": model, "optimizer": optimizer}

    def train(state: dict[str, Any]) -> None:
        state["optimizer"].zero_grad()
        state["model"](torch.ones(4, 3)).square().sum().backward()
        state["optimizer"].step()

    state, live = make(1), make(2)
    with Checkpointer(tmp_path, incremental=incremental) as checkpointer:
        for step in range(2):
            train(state)
            checkpointer.save(step, state)
        checkpointer.restore(into=live)
    train(state)
    train(live)
    for one, other in zip(state["model"].parameters(), live["model"].parameters(), strict=True):
        assert torch.equal(one.full_tensor(), other.full_tensor())
