"""How many bytes a stream reads ahead where its caller does not say."""

from __future__ import annotations

import contextlib

import torch

from fastio import devices

# Enough for two of the largest batches to be read, and two to be taken.
MOST_READ_AHEAD = 256 << 20
_SHARE = 8  # of the free memory: an eighth
_CGROUP_LIMIT = "/sys/fs/cgroup/memory.max"


def default_read_ahead(device: torch.device) -> int:
    """256 MiB, or an eighth of the memory that is free on the device, or on the host, if that is less."""
    accelerator = devices.find(device)
    free = _free_on_host() if accelerator is None else _free_on_device(accelerator, accelerator.with_index(device))
    return min([MOST_READ_AHEAD, *(nbytes // _SHARE for nbytes in free)])


def _free_on_device(accelerator: devices.Accelerator, device: torch.device) -> list[int]:
    module = accelerator.module
    if not hasattr(module, "mem_get_info"):
        return []
    cached = module.memory_reserved(device) - module.memory_allocated(device)
    return [module.mem_get_info(device)[0] + cached]


def _free_on_host() -> list[int]:
    """What programs can still allocate, and the limit of the container; nothing where the system does not say."""
    found: list[int] = []
    with contextlib.suppress(OSError), open("/proc/meminfo", encoding="ascii") as file:
        found += [int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:")]
    with contextlib.suppress(OSError), open(_CGROUP_LIMIT, encoding="ascii") as file:
        limit = file.read().strip()
        found += [int(limit)] if limit.isdigit() else []
    return found
