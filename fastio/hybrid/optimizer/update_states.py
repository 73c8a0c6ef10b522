"""Updates on the CPU, chunk by chunk, with the optimizer's state in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.optim import Optimizer

from fastio.hybrid.memory.chunks import Chunk, Part, cut_parameters, whole
from fastio.hybrid.memory.gradient import Gradient
from fastio.hybrid.memory.gradient_copies import GradientCopies
from fastio.hybrid.optimizer.cpu_optimizer import CpuOptimizer
from fastio.hybrid.planning import costs

State = dict[str, Any]
"""An optimizer's state of a parameter: tensors of its shape, and numbers (Adam's step)."""


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
        # The model's last parameters first: backward finishes those first.
        self._chunks = cut_parameters(list(reversed(gradients)), costs.BUCKET)

    def step(self, gradients: GradientCopies, groups: dict[torch.Tensor, int]) -> None:
        """See :class:`States`. During the update of a chunk, the gradients of later chunks are copied."""
        due = [list(self._cut_as_possible(updated(chunk, groups))) for chunk in self._chunks]
        gradients.start_copies(dict.fromkeys(part.gradient for parts in due for part in parts))
        kept = self._optimizer.state
        new = [p for p in groups if p.grad is not None and p not in kept]
        kept.update((p, {}) for p in new)  # in the order that plain training creates them
        for parts in filter(None, due):
            states = {part: _state_of(part, kept[part.slot.parameter]) for part in parts}
            for part, state in update_parts(self._cpu_optimizer, states, gradients, groups).items():
                if not part.is_whole:
                    put_back(part, state, kept[part.slot.parameter])
        for parameter in new:
            if not kept[parameter]:  # plain SGD has none
                del kept[parameter]

    def _cut_as_possible(self, parts: Iterable[Part]) -> Iterator[Part]:
        """Return the parts, with whole parameters for those whose state cannot be cut: the first step makes it."""
        for part in parts:
            if part.is_whole or _can_cut(part, self._optimizer.state.get(part.slot.parameter, {})):
                yield part
            elif part.start == 0:
                yield whole(part.gradient)

    def close(self) -> None:
        """Do nothing: the optimizer has its state."""


def updated(chunk: Chunk, groups: dict[torch.Tensor, int]) -> list[Part]:
    """Return the parts whose parameters are in the optimizer and have a gradient."""
    return [p for p in chunk.parts if p.slot.parameter in groups and p.slot.parameter.grad is not None]


def update_parts(
    cpu_optimizer: CpuOptimizer, states: dict[Part, State], gradients: GradientCopies, groups: dict[torch.Tensor, int]
) -> dict[Part, State]:
    """Update parts, one or more, that have these states, with their gradients; return their new states."""
    for part in states:
        part.master.grad = part.of(gradients.finish(part.gradient, part.stop))
    by_master = {part.master: state for part, state in states.items()}
    try:
        cpu_optimizer.update(((groups[part.slot.parameter], part.master) for part in states), by_master)
    finally:
        for part in states:
            part.master.grad = None
    return {part: by_master[part.master] for part in states}


def cut_state(part: Part, state: State) -> State:
    """Return a parameter's state, cut to a part of it."""
    cut: State = {}
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.shape == part.slot.host.shape and value.dim() > 0:
            laid = value if value.stride() == part.slot.host.stride() else torch.empty_like(part.slot.host).copy_(value)
            cut[name] = part.of(laid)
        else:
            cut[name] = value.clone() if isinstance(value, torch.Tensor) else value
    return cut


def _state_of(part: Part, state: State) -> State:
    return state if part.is_whole else cut_state(part, state)


def _can_cut(part: Part, state: State) -> bool:
    """Return whether the state consists of numbers and tensors laid out like the parameter, one or more of these."""
    host = part.slot.host
    tensors = [value for value in state.values() if isinstance(value, torch.Tensor) and value.dim() > 0]
    alike = all(value.shape == host.shape and value.stride() == host.stride() for value in tensors)
    return bool(tensors) and alike and all(value is not None for value in state.values())


def put_back(part: Part, updated_state: State, state: State) -> None:
    """Put what the update made of a part's state into the parameter's; its numbers after the last part."""
    for name, value in updated_state.items():
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            view = part.of(state[name])
            if view.data_ptr() != value.data_ptr():
                view.copy_(value)
        elif part.stop == part.slot.host.numel():
            if isinstance(value, torch.Tensor):
                state[name].copy_(value)
            else:
                state[name] = value
