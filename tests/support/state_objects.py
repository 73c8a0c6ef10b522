"""Random objects as they occur in state dicts."""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from typing import Any

import torch

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8)


def made(chance: random.Random, depth: int = 3) -> Any:
    """A random object, nested up to ``depth`` levels."""
    kind = chance.randrange(12 if depth else 8)
    tensor = torch.ones([chance.randrange(4) for _ in range(chance.randrange(4))]).to(chance.choice(DTYPES))
    keys = ["a", "", "\ud800", 7, -1, (1, "x"), None, 2.5]
    items = [(chance.choice(keys), made(chance, depth - 1)) for _ in range(chance.randrange(5))] if kind > 7 else []
    return [
        lambda: tensor,
        lambda: torch.nn.Parameter(torch.ones(tensor.shape), requires_grad=chance.random() < 0.5),
        lambda: tensor.to(torch.complex64).conj(),
        lambda: chance.choice([0, 255, 256, -1, 1 << 31, -(1 << 80), True, None]),
        lambda: chance.choice([math.inf, -0.0, math.nan, 1e-300]),
        lambda: chance.choice(["", "layer.0.weight", "\u00e9\U0001f600", "\udcff", "x" * 300]),
        lambda: chance.choice(DTYPES),
        lambda: torch.Size([chance.randrange(5)]),
        lambda: dict(items),
        lambda: OrderedDict(items),
        lambda: [item for _, item in items],
        lambda: tuple(item for _, item in items),
    ][kind]()
