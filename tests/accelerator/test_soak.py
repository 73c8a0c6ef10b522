"""Many iterations of training with offload, on two devices whose works run late: no wrong bit, no leak."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import simulated
from fastio import Offload
from fastio.devices.simulated import torch_module

ITERATIONS = 1000  # by night


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.GELU())])


def gradients(model: nn.Module, x: Tensor, offload: Offload | None) -> list[Tensor]:
    model.zero_grad()
    if offload is None:
        loss = model(x).square().mean()
    else:
        with offload:
            loss = model(x).square().mean()
    loss.backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("iterations", [ITERATIONS // 10, pytest.param(ITERATIONS, marks=pytest.mark.nightly)])
def test_iterations_of_two_managers_on_two_devices(tmp_path: Path, iterations: int) -> None:
    places = ["simulated:0", "simulated:1"]
    models = [small().to(place) for place in places]
    inputs = [torch.randn(64, 64, generator=torch.Generator().manual_seed(n)).to(places[n]) for n in range(2)]
    plain = [[g.cpu() for g in gradients(model, x, None)] for model, x in zip(models, inputs, strict=True)]
    gc.collect()
    allocated = [torch_module.memory_allocated(place) for place in places]
    managers = [
        Offload(models[0], store=tmp_path, policy="all", budget="64KiB", codec="none"),
        Offload(models[1], store=tmp_path, policy="all", budget=0, host_budget="32KiB", codec="none"),
    ]
    for iteration in range(iterations):
        if iteration % (iterations // 10) == 0:
            simulated.configure_execution("random", late_seed=iteration)
        for model, x, manager, expected in zip(models, inputs, managers, plain, strict=True):
            found = gradients(model, x, manager)
            assert all(torch.equal(g.cpu(), e) for g, e in zip(found, expected, strict=True)), iteration
    for manager, model in zip(managers, models, strict=True):
        assert manager.saved_tensors_alive == manager.counts.refused == manager.counts.retried == 0
        assert sum(traffic.writes for traffic in manager.report().traffic.values()) > iterations
        manager.close()
        model.zero_grad()
    del found
    gc.collect()
    assert [torch_module.memory_allocated(place) for place in places] <= allocated
    assert not simulated.leaks()
