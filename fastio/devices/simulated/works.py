"""The kernels and copies that the simulated accelerator did, and how often the host waited for them."""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass
from typing import Any

import torch

_OPS: Any = torch.ops.simulated


@dataclass(frozen=True)
class Work:
    """A kernel or a copy that a device did. Times in seconds; ``engine``: compute, to_device, to_host or peer."""

    name: str
    engine: str
    device: int
    stream: int
    nbytes: int
    issued: float
    started: float
    ended: float


def trace(since: int = 0) -> list[Work]:
    """The works that have ended since the last `reset`, at most a million, without the first ``since``."""
    works = []
    for line in _OPS.trace().splitlines()[since:]:
        name, engine, device, stream, nbytes, *times = line.split("\t")
        works.append(Work(name, engine, int(device), int(stream), int(nbytes), *map(float, times)))
    return works


def host_waits() -> int:
    """How often the host has waited for works that had not ended, since the last `reset`."""
    return int(_OPS.host_waits())


def overlapped_bytes(works: list[Work]) -> tuple[float, int]:
    """Bytes that were copied while a kernel of the same device ran (by time, in proportion), and all copied bytes."""
    kernels: dict[int, list[Work]] = {}  # a device runs one at a time
    for work in sorted(works, key=lambda work: work.started):
        if work.engine == "compute":
            kernels.setdefault(work.device, []).append(work)
    ends = {device: [kernel.ended for kernel in of_device] for device, of_device in kernels.items()}
    overlapped, copied = 0.0, 0
    for copy in works:
        if copy.engine == "compute":
            continue
        shared = 0.0
        for kernel in itertools.islice(
            kernels.get(copy.device, ()), bisect.bisect(ends.get(copy.device, ()), copy.started), None
        ):
            if kernel.started >= copy.ended:
                break
            shared += min(copy.ended, kernel.ended) - max(copy.started, kernel.started)
        copied += copy.nbytes
        overlapped += copy.nbytes * min(1.0, shared / max(copy.ended - copy.started, 1e-9))
    return overlapped, copied
