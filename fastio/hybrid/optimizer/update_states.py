"""Updates on the CPU, chunk by chunk, with the optimizer's state in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch.optim import Optimizer

from fastio.hybrid.memory.chunks import Chunk, Part, whole_parameters
from fastio.hybrid.memory.gradient import Gradient
from fastio.hybrid.memory.gradient_copies import GradientCopies
from fastio.hybrid.optimizer.cpu_optimizer import CpuOptimizer


class States(Protocol):
    """Keeps the optimizer's state and updates parameters with it. Counts bytes moved to and from disk."""

    bytes_written: int
    bytes_read: int

    def step(self, gradients: GradientCopies, groups: dict[torch.Tensor, int]) -> None:
        """Update every parameter that has a gradient; ``groups`` are the group numbers, by parameter."""

    def close(self) -> None:
        """Return the state to the optimizer."""


class HostStates:
    """State in memory, in torch's own ``optimizer.state``."""

    bytes_written = bytes_read = 0

    def __init__(self, optimizer: Optimizer, cpu_optimizer: CpuOptimizer, gradients: Sequence[Gradient]) -> None:
        self._optimizer = optimizer
        self._cpu_optimizer = cpu_optimizer
        self._chunks = whole_parameters(list(reversed(gradients)))

    def step(self, gradients: GradientCopies, groups: dict[torch.Tensor, int]) -> None:
        """See :class:`States`. During the update of a chunk, the gradients of later chunks are copied."""
        due = [(chunk, updated(chunk, groups)) for chunk in self._chunks]
        gradients.start_copies(part.gradient for _, parts in due for part in parts)
        kept = self._optimizer.state
        new = [p for p in groups if p.grad is not None and p not in kept]
        kept.update((p, {}) for p in new)  # in the order that plain training creates them
        for _, parts in due:
            if not parts:
                continue
            for part in parts:
                part.master.grad = gradients.finish(part.gradient)
            states = {part.master: kept[part.slot.parameter] for part in parts}
            try:
                self._cpu_optimizer.update(((groups[part.slot.parameter], part.master) for part in parts), states)
            finally:
                for part in parts:
                    part.master.grad = None
        for parameter in new:
            if not kept[parameter]:  # plain SGD has none
                del kept[parameter]

    def close(self) -> None:
        """Do nothing: the optimizer has its state."""


def updated(chunk: Chunk, groups: dict[torch.Tensor, int]) -> list[Part]:
    """Return the parts whose parameters are in the optimizer and have a gradient."""
    return [p for p in chunk.parts if p.slot.parameter in groups and p.slot.parameter.grad is not None]
