"""Trainings on the simulated accelerator have the bits of the same trainings on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import pytest
import torch
from torch import nn

import simulated


class Attention(nn.Module):
    """Causal self-attention of two heads, of operators that the CPU and the device compute alike."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, 2, width // 2).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        scores = q @ k.transpose(-2, -1) / (width // 2) ** 0.5
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        attended = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
        return self.out(attended.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = Attention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


def transformer(layers: int = 2, width: int = 32, vocabulary: int = 61) -> nn.Module:
    torch.manual_seed(0)
    blocks = [Block(width) for _ in range(layers)]
    return nn.Sequential(nn.Embedding(vocabulary, width), *blocks, nn.LayerNorm(width), nn.Linear(width, vocabulary))


Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def train(
    device: str,
    optimizer: Optimizer,
    model: nn.Module | None = None,
    steps: int = 4,
    before_step: Callable[[], object] = lambda: None,
) -> dict[str, torch.Tensor]:
    """The losses, parameters and gradients of a training."""
    model = (model or transformer()).to(device)
    step = optimizer(list(model.parameters()))
    batches = torch.randint(0, 61, (steps, 2, 4, 17), generator=torch.Generator().manual_seed(1))
    losses = []
    for inputs, targets in batches.to(device):
        before_step()
        step.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        step.step()
        losses.append(loss.detach())
    result = {"loss": torch.stack(losses).cpu()}
    for name, parameter in model.named_parameters():
        result[name] = parameter.detach().cpu()
        result[name + ".grad"] = parameter.grad.cpu()
    return result


def assert_same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, foreach=False),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-2, foreach=False),
    "adamw-foreach": lambda parameters: torch.optim.AdamW(parameters, 1e-2, foreach=True),
    "adamw-fused": lambda parameters: torch.optim.AdamW(parameters, 1e-2, fused=True),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("late", ["random", "always"])
def test_a_transformer_has_the_bits_of_the_cpu(optimizer: str, late: Literal["random", "always"]) -> None:
    simulated.configure_execution(late, late_seed=3)
    assert_same_bits(train("simulated:0", OPTIMIZERS[optimizer]), train("cpu", OPTIMIZERS[optimizer]))


def test_two_devices_train_at_once() -> None:
    simulated.configure_execution("random", late_seed=5)
    models, together = [transformer(), transformer()], threading.Barrier(2, timeout=600)

    def one(number: int) -> dict[str, torch.Tensor]:
        return train(f"simulated:{number}", OPTIMIZERS["adamw"], models[number], 8, together.wait)

    with ThreadPoolExecutor(2) as pool:
        trained = list(pool.map(one, range(2)))
    expected = train("cpu", OPTIMIZERS["adamw"], steps=8)
    assert_same_bits(trained[0], expected)
    assert_same_bits(trained[1], expected)


def test_layers_on_two_devices() -> None:
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    x = torch.randn(4, 8)
    second(first(x).relu()).square().sum().backward()
    expected = [first.weight.grad.clone(), second.weight.grad.clone()]
    first.to("simulated:0").zero_grad()
    second.to("simulated:1").zero_grad()
    simulated.configure_execution("always")
    second(first(x.to("simulated:0")).relu().to("simulated:1")).square().sum().backward()
    assert torch.equal(first.weight.grad.cpu(), expected[0])
    assert torch.equal(second.weight.grad.cpu(), expected[1])


def test_a_training_needs_the_memory_that_its_counters_say() -> None:
    make = OPTIMIZERS["sgd"]
    torch.simulated.empty_cache()
    torch.simulated.reset_peak_memory_stats(0)
    train("simulated:0", make)
    peak = torch.simulated.max_memory_reserved(0)
    torch.simulated.empty_cache()
    simulated.configure(0, memory_limit=peak)
    train("simulated:0", make)
    torch.simulated.empty_cache()
    simulated.configure(0, memory_limit=peak // 2)
    with pytest.raises(torch.OutOfMemoryError):
        train("simulated:0", make)


def test_gradients_are_scaled_in_mixed_precision() -> None:
    model = transformer(1).to("simulated")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("simulated", init_scale=256.0)
    inputs = torch.randint(0, 61, (2, 9), device="simulated")
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        with torch.autocast("simulated", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), inputs.flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert scaler.get_scale() == 256.0


def test_checkpointed_layers_drop_the_same_values_again() -> None:
    from torch.utils.checkpoint import checkpoint

    def gradient(recompute: bool) -> torch.Tensor:
        torch.manual_seed(2)
        x = torch.ones(200, device="simulated", requires_grad=True)

        def layer(values: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(values * 2, 0.5)

        y = checkpoint(layer, x, use_reentrant=False) if recompute else layer(x)
        (y * y).sum().backward()
        return x.grad.cpu()

    assert torch.equal(gradient(True), gradient(False))
