"""The state to save and restore: a transformer with AdamW's moments, whole or one rank's part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fastio_bench.workloads import objects
from fastio_bench.workloads.training_models import ARCHITECTURES

_BUILD = ARCHITECTURES["transformer"].build
_COPIES, _ITEM = 3, 4  # parameters and two moments, fp32
_WIDTHS, _LEAST_DEPTH = (1024, 512, 256, 128), 8
_SMALLEST = 64
_SHRINK = 0.01  # factor from a parameter to its moment, so that they differ


@dataclass(frozen=True, slots=True)
class Shape:
    """A transformer of ``depth`` blocks, each of 12 ``width``^2 parameters and a few more."""

    depth: int
    width: int

    @property
    def name(self) -> str:
        """For samples."""
        return f"adamw-{self.depth}x{self.width}"


def shape_of(nbytes: int) -> Shape:
    """The network of about ``nbytes`` with AdamW's moments: as wide as possible with eight blocks."""
    for width in (*_WIDTHS, _SMALLEST):
        depth = round(nbytes / (12 * width**2 * _ITEM * _COPIES))
        if depth >= _LEAST_DEPTH:
            return Shape(depth, width)
    return Shape(max(depth, 1), _SMALLEST)


class TrainingState:
    """A model and its AdamW after a first step, with the same values in every process."""

    def __init__(self, shape: Shape) -> None:
        torch.manual_seed(0)
        self.model = _BUILD(shape.depth, shape.width)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        for parameter in self.model.parameters():
            value = parameter.detach()
            moments = {"exp_avg": value * _SHRINK, "exp_avg_sq": value.square()}
            self.optimizer.state[parameter] = {"step": torch.tensor(1.0), **moments}

    def tree(self) -> dict[str, Any]:
        """The state as a Checkpointer takes it."""
        return {"model": self.model, "optimizer": self.optimizer}

    def dicts(self) -> dict[str, Any]:
        """The state as torch.save and DCP take it. No tensor is copied."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Every tensor by name, each parameter followed by its moments."""
        found = {}
        for name, parameter in self.model.named_parameters():
            found[name] = parameter.detach()
            found |= {f"{name}.{key}": value for key, value in self.optimizer.state[parameter].items()}
        return found

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def fingerprint(self) -> int:
        """A CRC-32 of all tensors."""
        return objects.fingerprint(self.tensors())

    def erase(self) -> None:
        """Zero all tensors, so that a restore must bring everything back."""
        for tensor in self.tensors().values():
            tensor.zero_()

    def change(self, share: float) -> None:
        """Change every byte of the last storages, up to ``share`` of all bytes (and of the storages)."""
        left = share * self.nbytes
        for tensor in reversed(self.tensors().values()):
            left -= tensor.nbytes
            if left < 0:
                return
            tensor.add_(1.0)


def parameters(shape: Shape) -> dict[str, torch.Tensor]:
    """The network's parameters by name, without memory."""
    with torch.device("meta"):
        network: nn.Module = _BUILD(shape.depth, shape.width)
    return {name: parameter.detach() for name, parameter in network.named_parameters()}


class ShardedState:
    """One rank's part of such a state, with the same values for any number of ranks that divides ``parts``."""

    def __init__(self, shape: Shape, mesh: Any, parts: int) -> None:
        self._tree, self.memory = sharded(shape, mesh, parts)

    def tree(self) -> dict[str, Any]:
        """The state as a Checkpointer takes it."""
        return self._tree

    dicts = tree

    def tensors(self) -> dict[str, torch.Tensor]:
        """This rank's part of every sharded tensor, by its number."""
        return {str(number): tensor for number, tensor in enumerate(self.memory)}

    @property
    def nbytes(self) -> int:
        """The bytes of this rank's tensors."""
        return sum(tensor.nbytes for tensor in self.memory)


def sharded(shape: Shape, mesh: Any, parts: int = 0) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """One rank's part of such a state, as FSDP2 shards it and DCP names it, and its memory.

    Values depend on which of ``parts`` they are in: as many as ranks, if it is 0.
    """
    from torch.distributed.tensor import DTensor, Shard

    rank, world = mesh.get_local_rank(), mesh.size()
    own = max(parts // world, 1)
    generators = [torch.Generator().manual_seed(rank * own + number) for number in range(own)]
    local: list[torch.Tensor] = []

    def part(whole: torch.Tensor) -> Any:
        mine = torch.empty(whole.shape[0] // world, *whole.shape[1:])
        for piece, generator in zip(mine.tensor_split(own), generators, strict=True):
            piece.uniform_(generator=generator)
        local.append(mine)
        return DTensor.from_local(mine, mesh, [Shard(0)], run_check=False)

    wholes = parameters(shape)
    model = {name: part(whole) for name, whole in wholes.items()}
    moments = {
        name: {"step": torch.tensor(1.0), "exp_avg": part(whole), "exp_avg_sq": part(whole)}
        for name, whole in wholes.items()
    }
    return {"model": model, "optimizer": {"state": moments}}, local
