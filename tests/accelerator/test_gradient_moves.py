"""Gradients that move to host memory beside backward, on the simulated accelerator: order, overlap and memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import simulated
from fastio.hybrid import Hybrid
from hybrid_training import one_thread

DEVICE = "simulated:0"
WIDTH, DEPTH, ROWS = 256, 8, 64


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def made(reserve: float | None) -> tuple[nn.Sequential, Hybrid | None]:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH)]).to(DEVICE)
    if reserve is None:
        return model, None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings: Any = {"planner": lambda costs: ["DHA"] * len(costs), "gradient_reserve": reserve}
    return model, Hybrid(model, optimizer, device=DEVICE, **settings)


def twice(model: nn.Sequential) -> list[torch.Tensor]:
    """Two backward passes with nested ones, a weight of several, and a hook that reads and writes gradients."""
    seen = []

    def look(_: torch.Tensor) -> None:
        seen.append(model[7].weight.grad.sum())
        model[6].weight.grad.mul_(2)

    inputs = torch.randn(ROWS, WIDTH, device=DEVICE, requires_grad=True)
    for _ in range(2):
        hidden = model[:4](inputs)
        hidden.register_hook(look)
        for one, other in ((4, 5), (6, 5)):
            hidden = checkpoint(model[one : one + 1].append(model[other]), hidden, use_reentrant=True)
        model[7](model[5](hidden)).square().mean().backward()
    return [*seen, *(p.grad.clone() for p in model.parameters())]


@pytest.mark.parametrize("late", ["random", "always"])
def test_reads_writes_and_additions_in_backward_are_ordered(late: Any) -> None:
    """The accelerator raises for an access that is not ordered after another stream's."""
    simulated.configure_execution("never")
    plain, _ = made(None)
    expected = [one.cpu() for one in twice(plain)]
    simulated.configure_execution(late)
    model, hybrid = made(0.0)
    assert hybrid is not None
    found = [one.cpu() for one in twice(model)]
    assert all(one.equal(other) for one, other in zip(found, expected, strict=True))
    assert hybrid.report().gradients_beside >= DEPTH
    hybrid.close()


def backward(reserve: float) -> tuple[list[simulated.Work], int]:
    """What a backward pass did in the modelled time, and the most memory that it took."""
    model, hybrid = made(reserve)
    nbytes = WIDTH * WIDTH * 4
    simulated.configure(copy_bandwidth=nbytes * 1e3, compute_bandwidth=nbytes * 4e3, latency=1e-6)
    simulated.configure_time(True, call_seconds=1e-7)
    try:
        loss = model(torch.randn(ROWS, WIDTH, device=DEVICE)).square().mean()
        torch.simulated.synchronize()
        begin, before = len(simulated.trace()), torch.simulated.memory_allocated()
        torch.simulated.reset_peak_memory_stats()
        loss.backward()
        torch.simulated.synchronize()
        most = torch.simulated.max_memory_allocated() - before
        works = sorted(simulated.trace()[begin:], key=lambda work: work.started)
    finally:
        simulated.configure_time(False)
    assert hybrid is not None
    assert hybrid.report().gradients_beside == (DEPTH if reserve == 0 else 0)
    hybrid.close()
    return works, most


def test_copies_overlap_backward_and_the_device_holds_three_gradients() -> None:
    nbytes = WIDTH * WIDTH * 4
    works, most = backward(0.0)
    copies = [work for work in works if work.engine == "to_host"]
    assert [work.nbytes for work in copies] == [nbytes] * DEPTH
    assert simulated.overlapped_bytes(works)[0] > (DEPTH - 2) * nbytes * 0.5
    _, kept = backward(1.0)
    assert kept - most >= (DEPTH - 3.5) * nbytes
