"""Checks a device view of pinned host memory: the host sees what a kernel writes there, and the reverse.

The exit status is 1 if not. Bandwidth of kernels is in 10^9 bytes per second.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch

from fastio.memory.raw_memory import host_bytes
from fastio.memory.staging_buffers import HostMemory
from fastio_bench.gpu.script import Script

_ROUNDS = 5


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    script = Script(arguments, __doc__, mib=256)
    nbytes = script.given.mib << 20
    memory = HostMemory(nbytes, script.accelerator)
    host = host_bytes(memory.address, nbytes)
    view = script.accelerator.host_view(host, memory, script.device)
    same_address = view.data_ptr() == memory.address

    view.fill_(7)
    script.synchronize()
    host_sees = bool((host == 7).all())

    numbers = torch.arange(nbytes // 8)
    device_sees = []
    for added in (1, 2):  # the second time, a cache of the device may hold the first ones
        host.view(torch.int64).copy_(numbers + added)
        device_sees.append(torch.equal(view.view(torch.int64), numbers.to(script.device) + added))

    words = view.view(torch.int32)
    on_device = torch.empty_like(words)
    read_s = script.seconds(lambda: torch.add(words, 1, out=on_device), _ROUNDS)
    write_s = script.seconds(lambda: torch.add(on_device, 1, out=words), _ROUNDS)
    script.tell(
        same_address=same_address,
        host_sees=host_sees,
        device_sees=device_sees,
        read_GB_s=nbytes / read_s / 1e9,
        write_GB_s=nbytes / write_s / 1e9,
    )
    if not host_sees or not all(device_sees):
        sys.exit(1)


if __name__ == "__main__":
    main()
