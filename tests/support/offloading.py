"""Models, and their training with and without offload, for tests of activation offload."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

# torch reports the topmost saved-tensor hooks since 2.7; only then can Offload warn of foreign hooks inside its own.
TOLD_OF_HOOKS = hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks")


Loss = Callable[[], Tensor]


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(1))


def mlp() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    model = seeded(
        lambda: nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 64))
    )
    x = noise(48, 64)
    return model, lambda m: m(x).square().mean()


def cnn() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    def make() -> nn.Module:
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 16), (16, 16), (16, 32)):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
            layers += [nn.MaxPool2d(2), nn.Dropout(0.1)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 16, 10))

    x = noise(8, 3, 32, 32)
    return seeded(make), lambda m: m(x).log_softmax(1)[:, 3].mean()


def transformer() -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    def make() -> nn.Module:
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
        return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    x = noise(4, 32, 64)
    return seeded(make), lambda m: m(x).square().mean()


def gradients(model: nn.Module) -> list[Tensor]:
    found = []
    for parameter in model.parameters():
        assert parameter.grad is not None
        found.append(parameter.grad.clone())
        parameter.grad = None
    return found


def same(mine: list[Tensor], plain: list[Tensor]) -> None:
    assert len(mine) == len(plain)
    for one, other in zip(mine, plain, strict=True):
        # As bits: NaN and -0.0 count too.
        assert torch.equal(
            torch.view_as_real(one) if one.is_complex() else one,
            torch.view_as_real(other) if other.is_complex() else other,
        )


def trained(model: nn.Module, loss: Callable[[nn.Module], Tensor], around: Any = None) -> list[Tensor]:
    torch.manual_seed(7)
    with around if around is not None else contextlib.nullcontext():
        value = loss(model)
    value.backward()
    return gradients(model)
