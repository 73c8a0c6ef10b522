"""Pinned host memory that tensors keep: it is unpinned and freed with the last of them."""

from __future__ import annotations

import errno
from typing import Any

import torch

from fastio import devices
from fastio.errors import RefusedError, ToolUnavailableError, TransferError
from fastio.memory.staging_buffers import HostMemory
from fastio.sizes import exact_size


def check_available() -> None:
    """Raise ToolUnavailableError, with the reason and the cure, if no accelerator here can use pinned memory."""
    if not devices.available():
        reason, cure = devices.of("cuda").why_unavailable()
        raise ToolUnavailableError(
            "pinned memory", f"an accelerator must pin it, and {reason}", f"{cure}; or load without into='pinned'"
        )


def pinned(path: str, nbytes: int) -> HostMemory:
    """New memory, pinned for the accelerator of this machine. TransferError, which names the file, if it is refused."""
    try:
        return HostMemory(nbytes, devices.available()[0])
    except RefusedError as error:
        what = f"pinning {exact_size(nbytes)} of host memory ({error}; free some, or load without into='pinned')"
        raise TransferError(errno.ENOMEM, what, path) from error


class _Part:
    """A part of the memory as numpy takes it, which keeps all of it."""

    def __init__(self, memory: HostMemory, offset: int, nbytes: int) -> None:
        self.memory = memory
        self.__array_interface__: dict[str, Any] = {
            "shape": (nbytes,), "typestr": "|u1", "data": (memory.address + offset, False), "version": 3,
        }  # fmt: skip


def pinned_bytes(memory: HostMemory, offset: int, nbytes: int) -> torch.Tensor:
    """A part of the memory, at least one byte, as a uint8 tensor; the memory lives as long as any tensor on it."""
    import numpy as np  # only loads into pinned memory need it

    return torch.from_numpy(np.asarray(_Part(memory, offset, nbytes)))
