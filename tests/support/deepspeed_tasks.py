"""What ranks do in the tests of DeepSpeed's checkpoints."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist


def engine_of(stage: int, ours: bool, seed: int = 0) -> Any:
    """A DeepSpeed engine with a stage of ZeRO, and fastio's checkpoint engine or its own."""
    import deepspeed

    from fastio.integrations.deepspeed import FastioCheckpointEngine

    deepspeed.init_distributed("gloo", verbose=False)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(300, 40), torch.nn.Linear(40, 3))
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": stage > 0},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    engine = deepspeed.initialize(model=model, optimizer=torch.optim.Adam(model.parameters()), config=config)[0]
    if ours:
        engine.checkpoint_engine = FastioCheckpointEngine()
    return engine


def train(engine: Any, steps: int) -> list[float]:
    """Train with the same samples in each run; returns the losses."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(steps):
        sample = torch.randn(1, 300, generator=generator).to(next(engine.parameters()).dtype)
        loss = engine(sample).float().square().sum()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def saved(folder: str, stage: int, ours: bool) -> list[float]:
    """Train, save, and train on; returns the losses after the save."""
    engine = engine_of(stage, ours)
    train(engine, 2)
    engine.save_checkpoint(folder, client_state={"note": {"a": 3}})
    return train(engine, 3)


def resumed(folder: str, stage: int, ours: bool) -> tuple[list[float], Any]:
    """Load into a model of other weights, and train on; returns the losses and what the client had saved."""
    engine = engine_of(stage, ours, seed=1)
    path, client = engine.load_checkpoint(folder)
    assert path is not None
    return train(engine, 3), client["note"]


def saved_by_one(folder: str) -> None:
    """Save once, and again with a rank that fails."""
    import_module("deepspeed")
    dist.barrier()  # ranks that import at different speeds wait here, not in the saves
    engine = engine_of(1, True)
    train(engine, 1)
    engine.save_checkpoint(folder, tag="whole")
    if dist.get_rank() == 1:
        os.makedirs(engine._get_zero_ckpt_name(folder, "torn"))  # a folder where its file should be
    dist.barrier()
    engine.save_checkpoint(folder, tag="torn")
