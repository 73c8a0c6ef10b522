"""The task of each of two ranks: the same training, plain and hybrid, under DistributedDataParallel."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fastio.hybrid import Hybrid, manager
from hybrid_training import MODELS, LateDeviceMemory, adamw, batch, rotated


def train(rank: int, port: int, out: str) -> None:
    """Train, and save the states of models and optimizers into the folder ``out``."""
    torch.set_num_threads(1)
    manager.device_memory_for = lambda device: LateDeviceMemory()
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        for hybrid, as_view in itertools.product((False, True), repeat=2):
            name = f"{'hybrid' if hybrid else 'plain'}-{'view' if as_view else 'copy'}-{rank}.pt"
            torch.save(_states(rank, hybrid, as_view), Path(out) / name)
    finally:
        dist.destroy_process_group()


def _states(rank: int, hybrid: bool, as_view: bool) -> Any:
    torch.manual_seed(rank)
    model = MODELS["transformer"]()
    optimizer = adamw(model)
    stepper: Any = optimizer
    if hybrid:
        stepper = Hybrid(model, optimizer, planner=rotated(0), gradient_reserve=0.5, device="cpu")
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=as_view)
    torch.manual_seed(10 + rank)
    for number in range(6):
        optimizer.zero_grad()
        if number % 2:
            with wrapped.no_sync():
                _backward(wrapped, model)
        _backward(wrapped, model)
        nn.utils.clip_grad_norm_(wrapped.parameters(), 0.5)
        stepper.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def _backward(wrapped: nn.Module, model: nn.Module) -> None:
    inputs, labels = batch(model)
    nn.functional.cross_entropy(wrapped(inputs), labels).backward()
