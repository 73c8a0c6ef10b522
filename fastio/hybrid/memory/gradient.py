"""A parameter's gradient and its place in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fastio.hybrid.memory.device_memory import PendingCopy
from fastio.hybrid.memory.flat_buffer import FlatBuffer
from fastio.hybrid.memory.layers import Slot


@dataclass(eq=False)
class Gradient:
    """A parameter's gradient. ``host`` is its place in host memory, ``device_view`` the same as compute sees it.

    ``on_host``: the plan puts it there. ``host_copies``: its copies to that place, of ``BUCKET`` bytes each. ``early``:
    if they were begun in backward, the copied tensor and its fingerprint. ``times``: backward passes that added to it
    since the last step; ``usual``: the number before the last step.
    """

    slot: Slot
    flat_buffer: FlatBuffer
    host: torch.Tensor
    device_view: torch.Tensor
    on_host: bool = False
    host_copies: Sequence[PendingCopy] = ()
    early: tuple[torch.Tensor, torch.Tensor] | None = None
    times: int = 0
    usual: int = 1
    useless: bool = False

    def __post_init__(self) -> None:
        self.address = self.device_view.data_ptr()

    def is_in_host_memory(self) -> bool:
        """Return whether the parameter's ``grad`` is its place in host memory."""
        grad = self.slot.parameter.grad
        return grad is not None and grad.data_ptr() == self.address

    def place(self) -> torch.Tensor:
        """Return its place in host memory, as compute sees it."""
        if self.device_view.data_ptr() != self.address:  # moved by share_memory_()
            self.device_view = self.flat_buffer.device_view(self.slot.offset, self.slot.host)
        return self.device_view
