"""The training step that the scripts about offload measure."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from fastio_bench.gpu.script import Script

OPTIONS: dict[str, int | str] = {"layers": 12, "width": 1024, "tokens": 512, "batch": 4, "host_budget": "4GiB"}


def training_step(script: Script) -> Callable[[AbstractContextManager[Any]], None]:
    """A function that runs one step of an encoder, of the sizes in ``OPTIONS``: its forward pass in a context."""
    given = script.given
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        given.width, given.width // 64, 4 * given.width, dropout=0.0, batch_first=True, norm_first=True
    )
    model = nn.TransformerEncoder(layer, given.layers, enable_nested_tensor=False).to(script.device)
    x = torch.randn(given.batch, given.tokens, given.width).to(script.device)

    def step(around: AbstractContextManager[Any]) -> None:
        model.zero_grad(set_to_none=True)
        with around:
            loss = model(x).square().mean()
        loss.backward()

    return step
