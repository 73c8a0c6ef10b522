"""Work on a device that goes on when the host knows a number that the device computes."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

import torch

from fastio import devices

Result = TypeVar("Result")
Steps = Generator[torch.Tensor, int, Result]
"""Yields a tensor with one integer or bool, and is sent that number."""


class Number:
    """An integer or a bool that a device computes, on its way to the host: behind the work on the current stream.

    ``accelerator`` and its ``device``: where it comes from; None if the host may wait for it, or on the CPU.
    """

    def __init__(
        self, number: torch.Tensor, accelerator: devices.Accelerator | None = None, device: torch.device | None = None
    ) -> None:
        self._number = number
        self._arrived: devices.Event | None = None
        if accelerator is not None and device is not None:
            self._number = torch.empty(number.shape, dtype=number.dtype, pin_memory=True, device="cpu")
            self._number.copy_(number, non_blocking=True)
            self._arrived = accelerator.current_stream(device).record_event()

    @property
    def is_there(self) -> bool:
        """Whether the host need not wait for it, or cannot tell."""
        return self._arrived is None or bool(self._arrived.query())

    def value(self) -> int:
        """Return it, after a wait if need be."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return int(self._number)


class Stepwise:
    """Steps that are done one after the other, as their numbers arrive. ``result``: what they return, at the end."""

    def __init__(
        self, steps: Steps[Any], accelerator: devices.Accelerator | None = None, device: torch.device | None = None
    ) -> None:
        self.result: Any = None
        self._steps = steps
        self._accelerator = accelerator
        self._device = device
        self._number: Number | None = None  # that was asked for

    def advance(self, wait: bool) -> bool:
        """Go on until a number has not arrived, or to the end (``wait``). Return whether that was reached.

        Work is queued on the current stream, which is to be the same one in each call.
        """
        while True:
            if not (wait or self._number is None or self._number.is_there):
                return False
            value = None if self._number is None else self._number.value()
            try:
                asked = self._steps.send(value)  # type: ignore[arg-type]
            except StopIteration as end:
                self.result = end.value
                return True
            self._number = Number(asked, None if wait else self._accelerator, self._device)


def run(steps: Steps[Result]) -> Result:
    """Do all steps, and wait for each number."""
    all_of_them = Stepwise(steps)
    all_of_them.advance(wait=True)
    result: Result = all_of_them.result
    return result
