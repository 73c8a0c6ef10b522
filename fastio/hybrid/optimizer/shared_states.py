"""Updates sharded by rank: each rank updates its slice of the parameters, with state in memory that all ranks share.

MemFerry on several GPUs (section V-D).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.optim import Optimizer

from fastio.hybrid.errors import HybridError
from fastio.hybrid.memory.chunks import Chunk, Part, cut_parameters
from fastio.hybrid.memory.device_memory import TwoBuffers
from fastio.hybrid.memory.flat_buffer import ALIGNMENT, FlatBuffer
from fastio.hybrid.memory.gradient import Gradient
from fastio.hybrid.memory.gradient_copies import GradientCopies
from fastio.hybrid.memory.ranks import SharingRanks
from fastio.hybrid.optimizer.cpu_optimizer import CpuOptimizer, settings_of
from fastio.hybrid.optimizer.update_states import State, cut_state, put_back, update_parts, updated
from fastio.hybrid.planning import costs
from fastio.memory.staging_buffers import PAGE

_PIECES = 4  # of a rank's slice, at least: with fewer, ranks' slices are of less equal size
_ITEM = 8  # bytes for a number


class SharedStates:
    """State in torch's own ``optimizer.state``, on every rank, in shared memory: one copy.

    All ranks make it together. Values that were put into ``optimizer.state`` meanwhile (by
    ``load_state_dict``) are moved there by the next step; they must be the same on every rank.
    """

    bytes_written = bytes_read = 0

    def __init__(
        self,
        optimizer: Optimizer,
        cpu_optimizer: CpuOptimizer,
        gradients: Sequence[Gradient],
        ranks: SharingRanks,
    ) -> None:
        self._optimizer = optimizer
        self._cpu_optimizer = cpu_optimizer
        self._ranks = ranks
        total = sum(gradient.slot.nbytes for gradient in gradients)
        piece = total // (_PIECES * ranks.count) // PAGE * PAGE
        chunks = cut_parameters(list(reversed(gradients)), max(PAGE, min(piece, costs.BUCKET)))
        self._own = [
            chunk for chunk, owner in zip(chunks, owners(chunks, ranks.count), strict=True) if owner == ranks.index
        ]
        self._gradients: dict[torch.Tensor, Gradient] = {gradient.slot.parameter: gradient for gradient in gradients}
        self._lines = {gradient: line for line, gradient in enumerate(gradients)}
        made = [self._made(number, torch.zeros(1)) for number in range(len(optimizer.param_groups))]
        self._names = sorted({name for state in made for name in state})
        tensors = sorted({name for state in made for name, value in state.items() if value.dim()})
        end = max((gradient.slot.offset + gradient.slot.nbytes for gradient in gradients), default=0)
        on_host = TwoBuffers()  # no device reads it: not pinned
        self._buffers = {name: FlatBuffer(end, on_host, ranks) for name in tensors}
        self._numbers = FlatBuffer(ALIGNMENT * len(gradients), on_host, ranks)

    def step(self, gradients: GradientCopies, groups: dict[torch.Tensor, int]) -> None:
        """See :class:`fastio.hybrid.optimizer.update_states.States`."""
        cure = "set gradients and the optimizer's settings, and call load_state_dict, on every rank alike"
        with self._ranks.together("preparing an update", cure) as values:
            fresh = self._share_states(groups)
            for parameter in filter(self._gradients.get, groups):
                name = self._gradients[parameter].slot.name
                values[f"whether {name} has a gradient"] = parameter.grad is not None
                values[f"whether the optimizer has state for {name}"] = (
                    self._lines[self._gradients[parameter]] not in fresh
                )
            values.update(settings_of(self._optimizer))
            due = [{part: self._cut(part, fresh) for part in updated(chunk, groups)} for chunk in self._own]
        with self._ranks.together("an update, which changed part of the parameters,"):
            gradients.start_copies(dict.fromkeys(part.gradient for states in due for part in states))
            for states in filter(None, due):
                for part, state in update_parts(self._cpu_optimizer, states, gradients, groups).items():
                    put_back(part, state, self._optimizer.state.get(part.slot.parameter, {}))

    def close(self) -> None:
        """Return the state to the optimizer, in this process's own memory."""
        for parameter in self._gradients:
            if parameter in self._optimizer.state:
                state = self._optimizer.state[parameter]
                for name, value in state.items():
                    if isinstance(value, torch.Tensor):
                        state[name] = value.clone()

    def _share_states(self, groups: dict[torch.Tensor, int]) -> set[int]:
        """Let the states of what is updated lie in shared memory; return the lines of those that have none yet."""
        fresh = set()
        kept = self._optimizer.state
        for parameter, number in groups.items():
            if parameter.grad is None or parameter not in self._gradients:
                continue  # those without elements, and frozen ones, are not updated
            gradient = self._gradients[parameter]
            state = kept.get(parameter, {})
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    place = self._place(gradient, name, value)
                    if place.data_ptr() != value.data_ptr():
                        state[name] = place.copy_(value)
            if not state:
                like = torch.zeros(1 if parameter.dim() else (), dtype=parameter.dtype)
                made = self._made(number, like)
                if made:
                    kept[parameter] = {name: self._place(gradient, name, value) for name, value in made.items()}
                    fresh.add(self._lines[gradient])
        return fresh

    def _cut(self, part: Part, fresh: set[int]) -> State:
        """Return a part's state; none before its first update, which makes it as in plain training."""
        if self._lines[part.gradient] in fresh:
            return {}
        return cut_state(part, self._optimizer.state.get(part.slot.parameter, {}))

    def _made(self, number: int, like: torch.Tensor) -> State:
        """Return the state that the optimizer makes in its first update of such a tensor."""
        like.grad = torch.zeros_like(like)
        states: dict[torch.Tensor, State] = {like: {}}
        self._cpu_optimizer.update([(number, like)], states)
        return states[like]

    def _place(self, gradient: Gradient, name: str, value: torch.Tensor) -> torch.Tensor:
        if name not in self._names:
            raise HybridError(
                f"the optimizer keeps {name}, which it did not when Hybrid was made: after a change of its settings, "
                f"close() Hybrid and make another"
            )
        if value.dim():
            return self._buffers[name].view(gradient.slot.offset, gradient.slot.host)
        start = ALIGNMENT * self._lines[gradient] + _ITEM * self._names.index(name)
        return self._numbers.view(start, value)


def owners(chunks: Sequence[Chunk], ranks: int) -> list[int]:
    """Return the rank that updates each chunk: neighbours, and about equal bytes for each rank."""
    total = sum(chunk.nbytes for chunk in chunks)
    found, end = [], 0
    for chunk in chunks:
        found.append(min(ranks - 1, (end + chunk.nbytes // 2) * ranks // total))
        end += chunk.nbytes
    return found
