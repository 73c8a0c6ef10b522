"""A step whose memory runs out is run once more, with a tighter plan and from the state that it began with."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

from fastio import devices
from fastio.errors import add_to_message

# torch's CPU allocator raises a RuntimeError with this name of itself.
_CPU_ALLOCATOR = "DefaultCPUAllocator"

_TWICE = "\nOffload.step ran this step twice, the second time with a smaller budget"

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
        """Set it to what it was."""
        with torch.no_grad():
            for buffer, before in self._buffers:
                buffer.copy_(before)
        torch.set_rng_state(self._random)
        for accelerator, states in self._on_devices:
            accelerator.set_random_states(states)


def run_twice(
    run: Callable[[], Result], state: StepState, may_repeat: Callable[[], bool], advice: Callable[[], str]
) -> Result:
    """Return what ``run`` returns. If memory runs out in it, and ``may_repeat()``, restore the state and run it again.

    Raises what the second run raises, with a note if its memory ran out too, and what the first one raises otherwise.
    ``advice()`` ends the note: it has the second run's budget, and what helps.
    """
    try:
        return run()
    except Exception as error:
        if not is_out_of_memory(error) or not may_repeat():
            raise
    # The error, whose frames hold the graph, is gone here.
    gc.collect()
    state.restore()
    try:
        return run()
    except Exception as error:
        if is_out_of_memory(error):
            add_to_message(error, _TWICE + advice())
        raise
