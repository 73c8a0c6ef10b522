"""Hybrid training on the simulated accelerator, whose works run late: the bits of plain training."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import simulated
from fastio.hybrid import Hybrid
from hybrid_training import MODELS, PLANNERS, Trained, batch, cloned, one_thread

STEPS = 12


def made(name: str, device: str) -> tuple[nn.Module, list[nn.Parameter]]:
    """The model on a device, without dropout, whose numbers would differ; and its parameters."""
    torch.manual_seed(0)
    model = MODELS[name]()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    model.to(device)
    if name == "transformer":
        model.head.weight = model.embedding.weight  # to() makes new parameters of this type of device
    return model, list(model.parameters())


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-3, fused=True)  # as Hybrid updates on the CPU


def loss_of(model: nn.Module, device: str) -> torch.Tensor:
    inputs, labels = (one.to(device) for one in batch(model))
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    return loss


@cache
def plain(name: str) -> Trained:
    """Training on the device, which waits after each call; the update is made to copies on the CPU."""
    simulated.configure_execution("never")
    model, parameters = made(name, "simulated:0")
    on_host = [nn.Parameter(parameter.detach().cpu()) for parameter in parameters]
    optimizer = adamw(on_host)
    torch.manual_seed(1)
    losses = []
    with one_thread():
        for _ in range(STEPS):
            model.zero_grad()
            losses.append(loss_of(model, "simulated:0").item())
            for host, parameter in zip(on_host, parameters, strict=True):
                host.grad = None if parameter.grad is None else parameter.grad.cpu()
            optimizer.step()
            for host, parameter in zip(on_host, parameters, strict=True):
                parameter.data.copy_(host)
    trained = Trained(losses, on_cpu(model), cloned(optimizer.state_dict()))
    simulated.reset()
    return trained


def train(name: str, device: str = "simulated:0", store: Path | None = None, **settings: Any) -> Trained:
    model, parameters = made(name, device)
    optimizer = adamw(parameters)
    hybrid = Hybrid(model, optimizer, device=device, optimizer_store=store, **settings)
    torch.manual_seed(1)
    losses = []
    with one_thread():
        for _ in range(STEPS):
            optimizer.zero_grad()
            losses.append(loss_of(model, device))
            optimizer.step()
    trained = Trained([loss.item() for loss in losses], on_cpu(model), cloned(optimizer.state_dict()))
    assert not hybrid.report().simulated
    hybrid.close()
    return trained


def on_cpu(model: nn.Module) -> dict[str, torch.Tensor]:
    return cloned({name: value.cpu() for name, value in model.state_dict().items()})


@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("name", MODELS)
def test_hybrid_gives_the_bits_of_plain_training(name: str, planner: str) -> None:
    expected = plain(name)
    reserve = (0.0, 0.5, 1.0)[(list(MODELS).index(name) + list(PLANNERS).index(planner)) % 3]
    simulated.configure_execution("random", late_seed=len(planner))
    settings = {"planner": PLANNERS[planner], "gradient_reserve": reserve}
    train(name, **settings).assert_same(expected)


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_hybrid_with_its_optimizer_on_disk_gives_the_bits_of_plain_training(name: str, tmp_path: Path) -> None:
    train(name, "simulated:1", tmp_path, gradient_reserve=0.5).assert_same(plain(name))
