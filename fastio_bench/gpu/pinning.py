"""Times registration of host memory, and copies both ways from it, from torch's pinned memory and from pageable memory.

Bandwidth is in 10^9 bytes per second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from fastio.memory.raw_memory import host_bytes
from fastio.memory.staging_buffers import HostMemory
from fastio_bench.gpu.script import Script

_ROUNDS = 5
_Made = TypeVar("_Made")


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    script = Script(arguments, __doc__, mib=1024)
    nbytes = script.given.mib << 20
    on_device = torch.zeros(nbytes, dtype=torch.uint8, device=script.device)
    script.synchronize()

    def speeds(host: torch.Tensor) -> dict[str, float]:
        to_device = script.seconds(lambda: on_device.copy_(host, non_blocking=True), _ROUNDS)
        to_host = script.seconds(lambda: host.copy_(on_device, non_blocking=True), _ROUNDS)
        return {"to_device_GB_s": nbytes / to_device / 1e9, "to_host_GB_s": nbytes / to_host / 1e9}

    seconds, memory = _timed(lambda: HostMemory(nbytes, script.accelerator))
    ours = {"make_s": seconds, **speeds(host_bytes(memory.address, nbytes))}
    ours["free_s"], _ = _timed(memory.close)

    plain = HostMemory(nbytes)
    host_bytes(plain.address, nbytes).zero_()  # its pages are there
    ours["register_s"], _ = _timed(lambda: script.accelerator.pin(plain.address, nbytes))
    ours["unregister_s"], _ = _timed(lambda: script.accelerator.unpin(plain.address))
    plain.close()

    seconds, pinned = _timed(lambda: torch.empty(nbytes, dtype=torch.uint8, pin_memory=True))
    torchs = {"make_s": seconds, **speeds(pinned)}
    pageable = speeds(torch.zeros(nbytes, dtype=torch.uint8))
    script.tell(ours=ours, pin_memory=torchs, pageable=pageable)


def _timed(call: Callable[[], _Made]) -> tuple[float, _Made]:
    began = time.perf_counter()
    made = call()
    return time.perf_counter() - began, made


if __name__ == "__main__":
    main()
