"""Prints what the machine allows: direct I/O, io_uring, fastio's tools, and attributes of the CUDA device."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from fastio.inspect import machine_checks
from fastio_bench.doctor import checks
from fastio_bench.gpu.script import Script

_ATTRIBUTES = {  # of the CUDA driver
    "UnifiedAddressing": 41,
    "PageableMemoryAccess": 88,
    "CanUseHostPointerForRegisteredMem": 91,
    "HostRegisterSupported": 99,
    "GPUDirectRDMASupported": 116,
    "DmaBufSupported": 124,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    script = Script(arguments, __doc__, dir=".")
    with tempfile.TemporaryDirectory(dir=script.given.dir) as folder:
        system = dict(checks.system(Path(folder)))
    tools = {name: "available" if available else told for name, available, told in machine_checks.tool_rows()}
    attributes = _attributes(script.device) if script.accelerator.kind == "cuda" else {}
    script.tell(system=system, tools=tools, attributes=attributes)


def _attributes(device: torch.device) -> dict[str, int | str]:
    cuda = ctypes.CDLL("libcuda.so.1")
    status = cuda.cuInit(0)
    found: dict[str, int | str] = {}
    for name, number in _ATTRIBUTES.items():
        value = ctypes.c_int()
        status = status or cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device.index)
        found[name] = f"error {status}" if status else value.value
    return found


if __name__ == "__main__":
    main()
