"""A step whose memory runs out is run again, with a tighter plan and from the state that it began with."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

from fastio import devices
from fastio.errors import add_to_message

# torch's CPU allocator raises a RuntimeError with this name of itself.
_CPU_ALLOCATOR = "DefaultCPUAllocator"

Result = TypeVar("Result")


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


def run_again(
    run: Callable[[], Result], state: StepState, may_repeat: Callable[[int], bool], note: Callable[[int], str]
) -> Result:
    """Return what ``run`` returns. While memory runs out in it, restore the state and run it again.

    ``may_repeat(runs)`` says after so many runs whether another is of use. Raises what the last run raises, with the
    ``note`` for so many runs.
    """
    runs = 0
    while True:
        try:
            return run()
        except Exception as error:
            runs += 1
            if not is_out_of_memory(error):
                raise
            if not may_repeat(runs):
                add_to_message(error, note(runs))
                raise
        # The error, whose frames hold the graph, is gone here.
        gc.collect()
        state.restore()
