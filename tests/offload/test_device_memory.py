"""Training larger than the memory of an accelerator, beside plain training with enough."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import simulated
from fastio.offload.manager import Offload

pytestmark = [pytest.mark.simulated, pytest.mark.slow]


def peak_after(train: Any, *given: Any) -> tuple[Any, int]:
    """Return what a training returns, and the most bytes that it reserved."""
    gc.collect()
    torch.simulated.empty_cache()
    torch.simulated.reset_peak_memory_stats(0)
    return train(*given), torch.simulated.max_memory_reserved(0)


@contextlib.contextmanager
def limited_to(nbytes: int) -> Iterator[None]:
    gc.collect()
    torch.simulated.empty_cache()
    simulated.configure(0, memory_limit=nbytes)
    yield
    simulated.configure(0, memory_limit=16 << 30)


def transformer() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 24, enable_nested_tensor=False)


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(120) for layer in (nn.Linear(64, 64), nn.Tanh())])


def train(make: Any, shape: tuple[int, ...], around: Any, steps: int = 5) -> list[torch.Tensor]:
    """Return the parameters after some steps; the fourth one is the first that a plan decides."""
    model = make().to("simulated")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to("simulated")
    torch.simulated.manual_seed(7)
    for _ in range(steps):
        optimizer.zero_grad()
        with around:
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        del loss
    return [parameter.detach().cpu() for parameter in model.parameters()]


def test_24_layers_train_in_half_of_the_memory(tmp_path: Path) -> None:
    shape = (8, 96, 128)
    plain, need = peak_after(train, transformer, shape, contextlib.nullcontext())
    with limited_to(need // 2), pytest.raises(torch.OutOfMemoryError):
        train(transformer, shape, contextlib.nullcontext())
    offload = Offload(store=tmp_path, budget=need // 4)
    with limited_to(need // 2):
        mine = train(transformer, shape, offload)
    assert all(torch.equal(one, other) for one, other in zip(mine, plain, strict=True))
    assert offload.report().planned is not None
    assert offload.counts.refused == offload.counts.retried == 0
    offload.close()


def test_ten_times_the_batch_trains_in_the_same_memory(tmp_path: Path) -> None:
    rows = 512
    _, need = peak_after(train, perceptron, (rows, 64), contextlib.nullcontext(), 3)
    plain = train(perceptron, (10 * rows, 64), contextlib.nullcontext(), 3)
    offload = Offload(store=tmp_path, policy="all", budget=0)
    with limited_to(need):
        mine = train(perceptron, (10 * rows, 64), offload, 3)
    assert all(torch.equal(one, other) for one, other in zip(mine, plain, strict=True))
    offload.close()
