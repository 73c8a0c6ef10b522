"""How much of Offload's copies an accelerator does while it computes, and what a step takes, in its modelled time."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

import simulated
from fastio.offload.manager import Offload
from slow_store import SlowStore

pytestmark = pytest.mark.simulated

LAYERS = 6


class Training:
    """A training step of an encoder that saves 2 MiB in each of its layers."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
        self.model = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).to("simulated")
        self.x = torch.randn(8, 64, 64, generator=torch.Generator().manual_seed(1)).to("simulated")

    def step(self, around: Any) -> tuple[float, list[simulated.Work], list[torch.Tensor]]:
        """Return the milliseconds of a step, what the device did in it, and the gradients."""
        self.model.zero_grad()
        torch.simulated.synchronize()
        begin = len(simulated.trace())
        started, ended = (torch.simulated.Event(enable_timing=True) for _ in range(2))
        started.record()
        with around:
            loss = self.model(self.x).square().mean()
        loss.backward()
        ended.record()
        torch.simulated.synchronize()
        works = simulated.trace()[begin:]
        return started.elapsed_time(ended), works, [p.grad.clone() for p in self.model.parameters()]


@pytest.fixture
def training() -> Training:
    """Transfers take about half of the time of the forward pass's compute, and a quarter of backward's."""
    simulated.configure(compute_bandwidth=1e9, copy_bandwidth=4e8, latency=1e-5)
    simulated.configure_time(True)
    return Training()


@pytest.mark.parametrize("call_us", [10, 100])
@pytest.mark.parametrize("host_budget", ["64MiB", 0])
@pytest.mark.parametrize("budget", ["1MiB", "6MiB"])
def test_copies_overlap_compute(training: Training, budget: str, host_budget: Any, call_us: int) -> None:
    """1 MiB is twice the largest saved tensor. With 100 us for each call, the host is hardly ahead of the device.

    With 6 MiB it is not ahead at all when backward begins: nothing overlaps a read of what backward needs first.
    """
    simulated.configure_time(True, call_seconds=call_us * 1e-6)
    training.step(contextlib.nullcontext())
    plain_ms, _, plain = training.step(contextlib.nullcontext())
    offload = Offload(store=SlowStore(), policy="all", budget=budget, host_budget=host_budget, codec="none")
    for _ in range(4):
        step_ms, works, mine = training.step(offload)
    offload.close()
    assert all(torch.equal(one, other) for one, other in zip(mine, plain, strict=True))
    for engine in ("to_host", "to_device"):
        chosen = [work for work in works if work.engine in ("compute", engine)]
        overlapped, copied = simulated.overlapped_bytes(chosen)
        assert copied > 5 << 20
        assert overlapped >= 0.9 * copied
    assert step_ms <= 1.05 * plain_ms
