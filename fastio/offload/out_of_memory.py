"""Tells that memory ran out, and takes a step back to the state that it began with, to be run again."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from fastio import devices

# torch's CPU allocator raises a RuntimeError with this name of itself.
_CPU_ALLOCATOR = "DefaultCPUAllocator"


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error means that the memory of a device or of the host ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _CPU_ALLOCATOR in str(error)


class StepState:
    """What a training step changes before it fails, besides gradients: random generators, and a module's buffers."""

    def __init__(self, buffers: Iterable[torch.Tensor]) -> None:
        self._buffers = [(buffer, buffer.detach().clone()) for buffer in buffers]
        self._random = torch.get_rng_state()
        self._on_devices = [
            (each, each.random_states()) for each in map(devices.of, devices.all_kinds()) if each.is_initialized()
        ]

    def restore(self) -> None:
        with torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)
        torch.set_rng_state(self._random)
        for accelerator, states in self._on_devices:
            accelerator.set_random_states(states)
