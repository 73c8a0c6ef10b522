"""Pins host memory for CUDA at its exact size, and unpins it.

torch's caching allocator of pinned memory rounds sizes up to powers of two; ``cudaHostRegister`` does not.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from fastio.errors import RefusedError

_torch: Any = torch._C
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every device, not only for the current one


def pin(address: int, nbytes: int) -> None:
    """Register the memory with CUDA. RefusedError if the driver refuses."""
    _check(torch.cuda.cudart().cudaHostRegister(address, nbytes, _PORTABLE), f"pinning {nbytes} bytes")


def unpin(address: int) -> None:
    """Wait for all work on all devices, then unregister the memory. RefusedError if either fails.

    Kernels and copies on any stream may still use the memory, and the driver does not promise to wait for them. A
    device without a context has no work, and waiting for it would make one.
    """
    try:
        for device in range(torch.cuda.device_count()):
            if _torch._cuda_hasPrimaryContext(device):
                torch.cuda.synchronize(device)
    except RuntimeError as error:
        raise RefusedError(f"unpinning: waiting for a device failed: {error}") from error
    _check(torch.cuda.cudart().cudaHostUnregister(address), "unpinning")


def _check(result: Any, doing: str) -> None:
    if int(result) != 0:
        _clear_cuda_error()
        raise RefusedError(f"{doing} failed: CUDA error {int(result)}")


def _clear_cuda_error() -> None:
    """Clear CUDA's last error of this thread, which torch would raise after the next, unrelated kernel.

    torch has no cudaGetLastError: so launch a kernel here that takes the error.
    """
    if torch.cuda.is_initialized():
        with contextlib.suppress(RuntimeError):
            torch.empty(1, device="cuda").fill_(0)
