"""Work on a device that goes on when the host knows a number that the device computes."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

import torch

from fastio import devices

Result = TypeVar("Result")
Steps = Generator[torch.Tensor, int, Result]
"""Yields a tensor with one integer or bool, and is sent that number."""


class Stepwise:
    """Steps that are done one after the other, as their numbers arrive. ``result``: what they return, at the end.

    ``accelerator`` and its ``device``: where the numbers come from; None for the CPU.
    """

    def __init__(
        self, steps: Steps[Any], accelerator: devices.Accelerator | None = None, device: torch.device | None = None
    ) -> None:
        self.result: Any = None
        self._steps = steps
        self._accelerator = accelerator
        self._device = device
        self._number: torch.Tensor | None = None  # that was asked for
        self._arrived: devices.Event | None = None  # when it is in pinned memory; None: it is where it was computed

    def advance(self, wait: bool) -> bool:
        """Go on until a number has not arrived, or to the end (``wait``). Return whether that was reached.

        Work is queued on the current stream, which is to be the same one in each call.
        """
        while True:
            number, value = self._number, None
            if number is not None:
                if not (wait or self._arrived is None or self._arrived.query()):
                    return False
                if self._arrived is not None:
                    self._arrived.synchronize()
                value = int(number)
            try:
                asked = self._steps.send(value)  # type: ignore[arg-type]
            except StopIteration as end:
                self.result = end.value
                return True
            if wait or self._accelerator is None or self._device is None:
                self._number, self._arrived = asked, None
            else:
                pinned = torch.empty(asked.shape, dtype=asked.dtype, pin_memory=True, device="cpu")
                pinned.copy_(asked, non_blocking=True)
                self._arrived = self._accelerator.current_stream(self._device).record_event()
                self._number = pinned


def run(steps: Steps[Result]) -> Result:
    """Do all steps, and wait for each number."""
    all_of_them = Stepwise(steps)
    all_of_them.advance(wait=True)
    result: Result = all_of_them.result
    return result
