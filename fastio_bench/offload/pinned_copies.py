"""The simplest asynchronous way to keep a device's saved tensors in host memory, for comparison."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fastio import devices
from fastio.offload.autograd.hooks import is_parameter

_LEAST_NBYTES = 1024
_COPIES_PENDING = 5


class PinnedCopies(saved_tensors_hooks):
    """torchtune's method, reimplemented from its documentation.

    Each saved tensor of 1024 bytes or more is copied to its own pinned memory on a side stream. The compute stream
    waits for a copy only when five newer ones have begun, and keeps its source alive until then. All come back on the
    side stream, and the compute stream waits for them when they are used.
    """

    def __init__(self, device: torch.device) -> None:
        module = devices.of(device).module
        side = module.Stream(device)
        going: deque[tuple[Tensor, Any]] = deque()

        def pack(tensor: Tensor) -> Tensor | tuple[Tensor, torch.device]:
            if tensor.device.type != device.type or tensor.nbytes < _LEAST_NBYTES or is_parameter(tensor):
                return tensor
            side.wait_stream(module.current_stream())
            with module.stream(side):
                kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                kept.copy_(tensor, non_blocking=True)
            going.append((tensor.detach(), side.record_event()))
            if len(going) > _COPIES_PENDING:
                module.current_stream().wait_event(going.popleft()[1])
            return kept, tensor.device

        def unpack(packed: Tensor | tuple[Tensor, torch.device]) -> Tensor:
            here = module.current_stream()
            here.wait_stream(side)  # for the copies whose sources are freed now
            going.clear()
            if isinstance(packed, Tensor):
                return packed
            with module.stream(side):
                back = packed[0].to(packed[1], non_blocking=True)
            here.wait_stream(side)
            back.record_stream(here)
            return back

        super().__init__(pack, unpack)
