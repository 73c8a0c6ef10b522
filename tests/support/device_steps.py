"""Training steps on the simulated accelerator, for the tests of what moves its saved tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

DEVICE = "simulated:0"


def layers_of(width: int) -> nn.Module:
    """Four linear layers with an activation each, on the device."""
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(width, width), nn.Tanh()))).to(DEVICE)


def step(model: nn.Module, rows: int, width: int, offload: Any, seed: int) -> list[torch.Tensor]:
    """The gradients of a step on ``rows`` drawn rows, on the device."""
    data = torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    model.zero_grad()
    with offload:
        loss = model(data).square().mean()
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
