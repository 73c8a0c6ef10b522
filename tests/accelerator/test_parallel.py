"""Replicas on two devices, each forward in a thread of its own, as nn.DataParallel runs them, under one Offload."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import parallel_apply

import fastio
import simulated
from hybrid_training import one_thread
from offloading import TOLD_OF_HOOKS, gradients, noise, same, seeded

pytestmark = [
    pytest.mark.skipif(not TOLD_OF_HOOKS, reason="torch says since 2.7 which saved-tensor hooks are installed"),
    pytest.mark.skipif(
        "accelerator" not in parallel_apply.__code__.co_names,
        reason="parallel_apply knows only its own kinds",
    ),
]


def net() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.LayerNorm(64)) for _ in range(4)))


@pytest.mark.parametrize("policy", ["all", "flashneuron"])
@pytest.mark.parametrize("host_budget", ["64MiB", 0], ids=["host", "disk"])
def test_replicas_on_two_devices_give_the_plain_gradients(tmp_path: Path, host_budget: Any, policy: str) -> None:
    replicas = [seeded(net).to(f"simulated:{number}") for number in range(2)]
    parts = [part.to(f"simulated:{number}") for number, part in enumerate(noise(256, 64).chunk(2))]

    def step(around: Any) -> list[torch.Tensor]:
        with one_thread():
            with around:
                outputs = parallel_apply(replicas, parts, devices=[0, 1])
            torch.cat([output.to("simulated:0") for output in outputs]).square().mean().backward()
        return [gradient.cpu() for replica in replicas for gradient in gradients(replica)]

    simulated.configure_execution("never")
    plain = step(contextlib.nullcontext())
    simulated.configure_execution("random", late_seed=3)
    offload = fastio.Offload(store=tmp_path, policy=policy, budget="96KiB", host_budget=host_budget)
    for _ in range(6):
        same(step(offload), plain)
    report = offload.report()
    assert report.counts.writes > 0
    assert len(report.iterations) == 6 * 3  # two threads, and the one of the with statement
    assert offload.saved_tensors_alive == 0
    offload.close()
