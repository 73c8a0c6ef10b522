"""How many bytes a stream reads ahead where its caller does not say."""

from __future__ import annotations

import torch

from fastio import devices
from fastio.memory.available_memory import available_memory

# Enough for two of the largest batches to be read, and two to be taken.
MOST_READ_AHEAD = 256 << 20
_SHARE = 8  # of the free memory: an eighth


def default_read_ahead(device: torch.device) -> int:
    """256 MiB, or an eighth of the memory that is free on the device, or on the host, if that is less."""
    accelerator = devices.find(device)
    free = available_memory() if accelerator is None else _free_on_device(accelerator, accelerator.with_index(device))
    return MOST_READ_AHEAD if free is None else min(MOST_READ_AHEAD, free // _SHARE)


def _free_on_device(accelerator: devices.Accelerator, device: torch.device) -> int | None:
    limit = accelerator.memory_limit(device)
    return None if limit is None else max(0, limit - accelerator.memory_allocated(device))
