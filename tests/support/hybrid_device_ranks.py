"""The task of two ranks with an accelerator each: hybrid training with a host copy for each rank, and one for all."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import simulated
from fastio.hybrid import Hybrid
from hybrid_training import MODELS, batch, cloned, rotated

STEPS = 8


def both() -> list[Any]:
    """The states after training with a host copy for each rank, and with one for both."""
    simulated.use()
    return [_trained(shared) for shared in (False, True)]


def _trained(shared: bool) -> Any:
    rank = dist.get_rank()
    device = f"simulated:{rank}"
    simulated.configure_execution("random", late_seed=rank)
    torch.manual_seed(0)
    model: nn.Module = MODELS["mlp"]().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    group: dict[str, Any] = {"process_group": dist.group.WORLD} if shared else {}
    hybrid = Hybrid(model, optimizer, planner=rotated(0), device=device, **group)
    torch.manual_seed(10 + rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        inputs, labels = (one.to(device) for one in batch(model))
        nn.functional.cross_entropy(model(inputs), labels).backward()
        for parameter in model.parameters():  # as DDP does, which knows no simulated device
            assert parameter.grad is not None
            total = parameter.grad.cpu()
            dist.all_reduce(total)
            parameter.grad = (total / dist.get_world_size()).to(device)
        hybrid.step()
    hybrid.close()
    return cloned({"model": _on_host(model), "optimizer": optimizer.state_dict()["state"]})


def _on_host(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.cpu() for name, value in model.state_dict().items()}
