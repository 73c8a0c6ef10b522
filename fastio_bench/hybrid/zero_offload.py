"""Training by DeepSpeed's ZeRO-Offload (stage 2, optimizer on the CPU), which the MemFerry paper compares with."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn


@contextmanager
def training(
    model: nn.Module, device: torch.device, loss_of: Callable[[nn.Module, Tensor], Tensor], learning_rate: float
) -> Iterator[Callable[[Tensor], Tensor]]:
    """Yield what trains a step with tokens, and returns its loss. DeepSpeed compiles its CPU optimizer at first use."""
    deepspeed: Any = import_module("deepspeed")
    backend = "nccl" if device.type == "cuda" else "gloo"
    with patch.dict(os.environ, {"LOCAL_RANK": "0"}), tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(backend, init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
        try:
            settings = {
                "train_micro_batch_size_per_gpu": 1,  # only for its own reports
                "optimizer": {"type": "AdamW", "params": {"lr": learning_rate, "weight_decay": 0.01}},
                "zero_optimization": {
                    "stage": 2,
                    "offload_optimizer": {"device": "cpu", "pin_memory": True},
                    "overlap_comm": True,
                    "contiguous_gradients": True,
                },
            }
            engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)

            def step(tokens: Tensor) -> Tensor:
                loss = loss_of(engine, tokens)
                engine.backward(loss)
                engine.step()
                return loss.detach()

            try:
                yield step
            finally:
                engine.destroy()
        finally:
            dist.destroy_process_group()
