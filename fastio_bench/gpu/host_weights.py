"""Runs a layer forward and backward with its weights in device memory, then in pinned host memory.

The exit status is 1 if outputs or gradients differ by more than rounding.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from fastio.memory.raw_memory import host_bytes
from fastio.memory.staging_buffers import PAGE, HostMemory
from fastio_bench.gpu.script import Script

_ROUNDS = 5
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}  # of the largest element

# Functions of a width that make a layer and the shape of an element of a batch.
LAYERS: dict[str, Callable[[int], tuple[nn.Module, tuple[int, ...]]]] = {
    "linear": lambda width: (nn.Linear(width, width), (width,)),
    "linear-bf16": lambda width: (nn.Linear(width, width, dtype=torch.bfloat16), (width,)),
    "convolution": lambda width: (nn.Conv2d(width // 16, width // 16, 3, padding=1), (width // 16, 32, 32)),
    "embedding": lambda width: (nn.Embedding(8 * width, width), (16,)),
    "lstm": lambda width: (nn.LSTM(width, width, batch_first=True), (16, width)),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    script = Script(arguments, __doc__, layer="linear", width=2048, batch=32)
    torch.manual_seed(0)
    layer, shape = LAYERS[script.given.layer](script.given.width)
    layer.to(script.device)
    x = _inputs(layer, (script.given.batch, *shape)).to(script.device)
    expected = _outcome(layer, x)
    device_s = script.seconds(lambda: layer(x), _ROUNDS)
    for parameter in layer.parameters():
        _move_to_host(script, parameter)
    found = _outcome(layer, x)
    host_s = script.seconds(lambda: layer(x), _ROUNDS)
    differences = [_difference(one, other) for one, other in zip(found, expected, strict=True)]
    same_bits = all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    nbytes = sum(parameter.nbytes for parameter in layer.parameters())
    script.tell(weights=nbytes, same_bits=same_bits, difference=max(differences), device_s=device_s, host_s=host_s)
    if not max(differences) <= _TOLERANCE[expected[0].dtype]:  # NaN too
        sys.exit(1)


def _inputs(layer: nn.Module, shape: tuple[int, ...]) -> Tensor:
    if isinstance(layer, nn.Embedding):
        return torch.randint(0, layer.num_embeddings, shape)
    return torch.randn(shape, dtype=next(layer.parameters()).dtype)


def _outcome(layer: nn.Module, x: Tensor) -> list[Tensor]:
    """The output and the gradients of the parameters."""
    layer.zero_grad()
    output = layer(x)
    output = output[0] if isinstance(output, tuple) else output
    output.square().sum().backward()
    gradients = [parameter.grad.clone() for parameter in layer.parameters() if parameter.grad is not None]
    return [output.detach(), *gradients]


def _move_to_host(script: Script, parameter: nn.Parameter) -> None:
    memory = HostMemory(-(-parameter.nbytes // PAGE) * PAGE, script.accelerator)
    host = host_bytes(memory.address, parameter.nbytes)
    host.copy_(parameter.detach().cpu().contiguous().flatten().view(torch.uint8))
    view = script.accelerator.host_view(host, memory, script.device)
    parameter.data = view.view(parameter.dtype).view(parameter.shape)


def _difference(one: Tensor, other: Tensor) -> float:
    """The largest difference, as a part of the largest element."""
    return float((one - other).abs().max()) / max(float(other.abs().max()), 1e-30)


if __name__ == "__main__":
    main()
