"""Copies on side streams: Offload and Hybrid share those of a device, and two devices share blocks of host memory."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fastio
import simulated
from fastio.hybrid import Hybrid
from hybrid_training import PLANNERS, one_thread
from offloading import noise, same, seeded, trained

STEPS = 6
DEVICE = "simulated:0"


def train(hybrid: bool, offload: fastio.Offload | None) -> list[torch.Tensor]:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.LayerNorm(64)) for _ in range(4)]
    model = nn.Sequential(*layers).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    manager = None
    if hybrid:
        manager = Hybrid(model, optimizer, device=DEVICE, planner=PLANNERS["memferry"], gradient_reserve=0.5)
    on_host = [nn.Parameter(parameter.detach().cpu()) for parameter in model.parameters()]
    update = torch.optim.SGD(on_host, lr=0.1, fused=True)
    x = torch.randn(128, 64)
    with one_thread():
        for _ in range(STEPS):
            optimizer.zero_grad()
            around: Any = contextlib.nullcontext() if offload is None else offload
            with around:
                loss = model(x.to(DEVICE)).square().mean()
            loss.backward()
            if hybrid:
                optimizer.step()
                continue
            for host, parameter in zip(on_host, model.parameters(), strict=True):
                host.grad = None if parameter.grad is None else parameter.grad.cpu()
            update.step()
            with torch.no_grad():
                for host, parameter in zip(on_host, model.parameters(), strict=True):
                    parameter.copy_(host)
    weights = [parameter.detach().cpu().clone() for parameter in model.parameters()]
    if manager is not None:
        manager.close()
    return weights


@pytest.mark.parametrize("host_budget", ["64MiB", 0], ids=["host", "disk"])
def test_offload_and_hybrid_together_copy_on_one_stream_each_way(tmp_path: Path, host_budget: Any) -> None:
    simulated.configure_execution("never")
    plain = train(hybrid=False, offload=None)
    simulated.reset()
    simulated.configure_execution("random", late_seed=1)
    offload = fastio.Offload(store=tmp_path, policy="all", budget="64KiB", host_budget=host_budget, codec="none")
    mine = train(hybrid=True, offload=offload)
    counts = offload.report().counts
    offload.close()
    same(mine, plain)
    assert counts.writes > 0
    for engine in ("to_device", "to_host"):
        works = [work for work in simulated.trace() if work.engine == engine and work.stream]
        assert len({work.stream for work in works}) == 1, "besides the program's own, on stream 0"
        assert len({work.nbytes for work in works}) > 1, "parameters or gradients, and activations"


def test_blocks_of_host_memory_go_from_device_to_device(tmp_path: Path) -> None:
    """The host waits for nothing: a copy out to a block that another device's copy back reads must follow that."""

    def net() -> nn.Module:
        return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(3)))

    models = [seeded(net).to(f"simulated:{number}") for number in range(2)]
    inputs = [noise(64, 64).to(f"simulated:{number}") for number in range(2)]

    def step(number: int, around: Any = None) -> list[torch.Tensor]:
        return trained(models[number], lambda model: model(inputs[number]).square().mean(), around)

    plain = [[one.cpu() for one in step(number)] for number in range(2)]
    simulated.configure_execution("random", late_seed=1)
    offload = fastio.Offload(store=tmp_path, policy="all", budget=0, host_budget="96KiB", codec="none")
    order = [0, 0, 0, 0, 1, 0, 1, 0, 1]  # the other device comes when nothing is waited for any more
    found = [step(number, offload) for number in order]
    for number, gradients in zip(order, found, strict=True):
        same([one.cpu() for one in gradients], plain[number])
    assert offload.counts.refused == 0
    assert offload.counts.traffic["host"].reads > len(order)
    offload.close()
