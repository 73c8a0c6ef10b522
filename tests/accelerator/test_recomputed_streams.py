"""Recomputed tensors on several streams of a device: what a stream uses was computed, and is freed behind it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy

import fastio
import simulated

aten = torch.ops.aten
SIZE = 128
Forward = Callable[[torch.Tensor, list[torch.Tensor], Any, Any], torch.Tensor]


def recomputing(recomputed: Any) -> Callable[..., CheckpointPolicy]:
    def policy(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_RECOMPUTE if operator is recomputed else CheckpointPolicy.MUST_SAVE

    return policy


def used_on_both(x: torch.Tensor, weights: list[torch.Tensor], main: Any, side: Any) -> torch.Tensor:
    """The recomputed tensor is saved on both streams."""
    y = torch.nn.functional.gelu(x @ weights[0])
    side.wait_stream(main)
    with side:
        one = (y @ weights[1]).square().sum()
    y.record_stream(side)
    other = (y @ weights[2]).square().sum()
    del y
    main.wait_stream(side)
    return one + other


def made_on_another(x: torch.Tensor, weights: list[torch.Tensor], main: Any, side: Any) -> torch.Tensor:
    """The tensor is recomputed on the side stream, from one of the main stream."""
    h = x @ weights[0]
    one = (h * h).sum()
    side.wait_stream(main)
    with side:
        other = (torch.relu(h) @ weights[1]).sum()
    h.record_stream(side)
    del h
    main.wait_stream(side)
    return one + other


def step(forward: Forward, offload: fastio.Offload | None) -> list[torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(SIZE, SIZE).to("simulated:0")
    weights = [(torch.randn(SIZE, SIZE) / 16).to("simulated:0").requires_grad_() for _ in range(3)]
    main, side = torch.accelerator.current_stream(x.device), torch.Stream(x.device)
    if offload is None:
        loss = forward(x, weights, main, side)
    else:
        with offload:
            loss = forward(x, weights, main, side)
    loss.backward()
    for _ in range(8):  # reuses what was freed
        torch.full((SIZE, SIZE), 7.0, device=x.device) * 2
    torch.accelerator.synchronize(x.device)
    return [one.grad.cpu() for one in weights if one.grad is not None]


@pytest.mark.parametrize(
    ("forward", "recomputed"), [(used_on_both, aten.gelu.default), (made_on_another, aten.relu.default)]
)
def test_streams_are_ordered(tmp_path: Path, forward: Forward, recomputed: Any) -> None:
    simulated.configure_execution("never", check_order=True)
    expected = step(forward, None)
    offload = fastio.Offload(store=tmp_path, policy=recomputing(recomputed), host_budget="8MiB")
    for _ in range(3):
        assert all(map(torch.equal, step(forward, offload), expected))
    assert offload.counts.recomputed > 0
    assert offload.saved_tensors_alive == 0
    offload.close()
