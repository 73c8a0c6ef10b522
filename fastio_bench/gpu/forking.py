"""Times ``fork`` with pinned memory: none, fastio's, torch's. Then the device copies from fastio's.

The exit status is 1 if a child fails or the device gets wrong bytes.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Sequence

import torch

from fastio.memory.raw_memory import host_bytes
from fastio.memory.staging_buffers import HostMemory
from fastio_bench.gpu.script import Script


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    script = Script(arguments, __doc__, mib=512)
    nbytes = script.given.mib << 20
    torch.zeros(1, device=script.device)
    script.synchronize()
    none_s = _fork_seconds()
    memory = HostMemory(nbytes, script.accelerator)
    host = host_bytes(memory.address, nbytes)
    host.fill_(7)
    ours_s = _fork_seconds()
    arrived = bool((host.to(script.device, non_blocking=True) == 7).all())
    script.synchronize()
    memory.close()
    pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).fill_(7)
    torch_s = _fork_seconds()
    script.tell(none_s=none_s, ours_s=ours_s, pin_memory_s=torch_s, arrived=arrived, pinned=pinned.is_pinned())
    if not arrived:
        sys.exit(1)


def _fork_seconds() -> float:
    """Seconds until ``fork`` returns here. The child ends at once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12's, of processes with threads
        began = time.perf_counter()
        child = os.fork()
    if child == 0:
        os._exit(0)
    taken = time.perf_counter() - began
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit(f"the forked child ended with status {status}")
    return taken


if __name__ == "__main__":
    main()
