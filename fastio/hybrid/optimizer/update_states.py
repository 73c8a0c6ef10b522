"""The update on the CPU, piece by piece, with the optimizer's state in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch.optim import Optimizer

from fastio.hybrid.memory.chunks import Part, Piece, whole
from fastio.hybrid.memory.gradient_copies import Gradient, Gradients
from fastio.hybrid.optimizer.cpu_optimizer import Worker


class States(Protocol):
    """Whoever has the optimizer's state and updates parameters with it. The counts are bytes moved to and from disk."""

    bytes_written: int
    bytes_read: int

    def step(self, gradients: Gradients, groups: dict[torch.Tensor, int]) -> None:
        """Update every parameter that has a gradient; ``groups`` are the optimizer's, by parameter."""

    def close(self) -> None:
        """Give the state back to the optimizer."""


class InMemory:
    """State in memory, where torch's optimizer has it: ``optimizer.state`` is what is used."""

    bytes_written = bytes_read = 0

    def __init__(self, optimizer: Optimizer, worker: Worker, gradients: Sequence[Gradient]) -> None:
        self._optimizer = optimizer
        self._worker = worker
        self._pieces = whole(list(reversed(gradients)))

    def step(self, gradients: Gradients, groups: dict[torch.Tensor, int]) -> None:
        """See :class:`States`. While a bucket is updated, the gradients of those behind it are on their way."""
        due = [(piece, updated(piece, groups)) for piece in self._pieces]
        gradients.begin(part.gradient for _, parts in due for part in parts)
        kept = self._optimizer.state
        new = [p for p in groups if p.grad is not None and p not in kept]
        kept.update((p, {}) for p in new)  # in the order of plain training
        for _, parts in due:
            if not parts:
                continue
            for part in parts:
                part.master.grad = gradients.finish(part.gradient)
            states = {part.master: kept[part.slot.parameter] for part in parts}
            try:
                self._worker.update(((groups[part.slot.parameter], part.master) for part in parts), states)
            finally:
                for part in parts:
                    part.master.grad = None
        for parameter in new:
            if not kept[parameter]:  # plain SGD has none
                del kept[parameter]

    def close(self) -> None:
        """Nothing to give back: it is there."""


def updated(piece: Piece, groups: dict[torch.Tensor, int]) -> list[Part]:
    """The parts whose parameters are the optimizer's and have a gradient."""
    return [p for p in piece.parts if p.slot.parameter in groups and p.slot.parameter.grad is not None]
