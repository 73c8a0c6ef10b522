"""Tests which saved tensors the vDNN policies move: those of operators, however a model calls them."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastio.offload.autograd.trace import kind_of
from fastio.offload.manager import Offload
from fastio.offload.planning.schedule import Policy, PolicyName
from offloading import noise, same, seeded, trained, transformer
from slow_store import SlowStore

Loss = Callable[[nn.Module], Tensor]


class Functional(nn.Module):
    """Convolutions without a module, and activations out of place."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = (nn.Parameter(noise(16, 16, 3, 3)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(F.gelu(F.conv2d(x, self.one, padding=1)), self.two, padding=1)


class Residual(nn.Module):
    """A block of ResNet: two convolutions with norms, a sum, and a pooling with indices."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](self.convolutions[0](x)).relu()
        return F.max_pool2d((self.norms[1](self.convolutions[1](y)) + x).relu(), 2)


def selected(policy: PolicyName | Policy, model: nn.Module, loss: Loss) -> tuple[int, ...]:
    """Return what a plan moves, by the order in which tensors were saved. Gradients are those without offload."""
    offload = Offload(model, store=SlowStore(), policy=policy, codec="none")
    plain = trained(model, loss)
    for _ in range(3):
        same(trained(model, loss, offload), plain)
    planned = offload.report().planned
    offload.close()
    assert planned is not None
    return planned.selected


def test_conv_moves_inputs_of_functional_convolutions() -> None:
    x = noise(4, 16, 32, 32)
    # The images, what the activation was given, what it made.
    assert selected("vdnn-conv", Functional(), lambda m: m(x).sum()) == (0, 2)
    assert selected("vdnn-all", Functional(), lambda m: m(x).sum()) == (0, 1, 2)


def test_residual_block_moves_what_convolutions_or_all_layers_take() -> None:
    x = noise(4, 16, 32, 32)
    model = seeded(Residual)
    # The images, a norm's input, an activation's output, a norm's input, an activation's output, the pooling's indices
    # and its output.
    assert selected("vdnn-conv", model, lambda m: m(x).square().sum()) == (0, 2)
    assert selected("vdnn-all", model, lambda m: m(x).square().sum()) == (0, 1, 2, 3, 4, 6)


def test_all_moves_the_feature_maps_of_a_transformer() -> None:
    model, loss = transformer()
    everything = selected(lambda activations, need, seconds: range(len(activations)), model, loss)
    assert len(everything) > 10
    assert selected("vdnn-all", model, loss) == everything


def test_model_without_convolutions_is_told_once() -> None:
    model, _ = transformer()
    offload = Offload(model, store=SlowStore(), policy="vdnn-conv")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for x in (noise(batch, 32, 64) for batch in (2, 4, 2, 4, 2)):
            with offload:
                loss = model(x).square().mean()
            loss.backward()
    assert [str(one.message) for one in said if issubclass(one.category, UserWarning)] == [
        "policy 'vdnn-conv' moves the inputs of convolutions, and this forward pass saves none: nothing is moved. Use "
        "policy 'flashneuron' or 'all'"
    ]


def test_layers_are_known_once_a_backward_has_run() -> None:
    """The passes before it are profiled; that it has nothing to move is not said without knowing."""
    x, model = noise(4, 16, 32, 32), Functional()
    offload = Offload(model, store=SlowStore(), policy="vdnn-conv", codec="none")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses = []
        for _ in range(3):
            with offload:
                losses.append(model(x).sum())
        assert offload.report().planned is None
        for loss in losses:
            loss.backward()
        trained(model, lambda m: m(x).sum(), offload)
    planned = offload.report().planned
    assert planned is not None
    assert len(planned.selected) == 2


@pytest.mark.parametrize(
    ("operator", "dtype", "kind"),
    [
        ("ConvolutionBackward0", torch.float32, "conv"),
        ("CudnnConvolutionTransposeBackward0", torch.float16, "conv"),
        ("MkldnnConvolutionBackward0", torch.bfloat16, "conv"),
        ("ConvTbcBackward0", torch.float32, "conv"),
        ("MaxPool2DWithIndicesBackward0", torch.float32, "pool"),
        ("MaxPool2DWithIndicesBackward0", torch.int64, ""),
        ("ConvertBackward", torch.float32, "convert"),
        ("AddmmBackward0", torch.float32, "addmm"),
        ("NativeDropoutBackward0", torch.bool, ""),
    ],
)
def test_kind_follows_from_the_name_of_the_node(operator: str, dtype: torch.dtype, kind: str) -> None:
    assert kind_of(operator, dtype) == kind
