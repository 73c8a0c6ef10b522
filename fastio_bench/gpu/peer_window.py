"""Writes and reads device memory through a window that a disk could use, if there is a way to have one.

A window that faults kills the process, so this runs alone. The exit status is 1 if wrong bytes arrive.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Sequence

import torch

from fastio.errors import RefusedError
from fastio.nvme.gpu_memory import GpuWindow
from fastio_bench.gpu.script import Script


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    script = Script(arguments, __doc__, mib=2)
    nbytes = script.given.mib << 20
    tensor = torch.arange(nbytes // 8).to(script.device)
    expected = bytes(tensor.cpu().numpy())
    script.synchronize()
    try:
        window = GpuWindow(tensor.data_ptr(), nbytes)
    except RefusedError as error:
        script.tell(window=str(error))
        return
    with window:
        began = time.perf_counter()
        seen = ctypes.string_at(window.address, nbytes)
        read_s = time.perf_counter() - began
        began = time.perf_counter()
        ctypes.memset(window.address, 7, nbytes)
        write_s = time.perf_counter() - began
    arrived = bool((tensor.view(torch.uint8) == 7).all())
    speeds = {"read_GB_s": nbytes / read_s / 1e9, "write_GB_s": nbytes / write_s / 1e9}
    script.tell(window=str(window.offer), host_sees=seen == expected, device_sees=arrived, **speeds)
    if seen != expected or not arrived:
        sys.exit(1)


if __name__ == "__main__":
    main()
