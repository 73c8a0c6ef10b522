"""The argument ``into=`` of loads: the kind of host memory that they fill."""

from __future__ import annotations

import torch

from fastio.engine.torch_load import LoadCall, device_named
from fastio.errors import UnsupportedError
from fastio.memory.load_buffers import PINNED, SHARED
from fastio.memory.pinned_memory import check_available


def into_memory(call: LoadCall, into: str | None) -> LoadCall:
    """The call for a load into a kind of host memory: None, ``"pinned"`` or ``"shared"``.

    ValueError for another kind, UnsupportedError for arguments that mean other memory, ToolUnavailableError where no
    accelerator pins memory.
    """
    if into is None:
        return call
    if into not in (PINNED, SHARED):
        raise ValueError(f"into={into!r}: expected {PINNED!r}, {SHARED!r} or None")
    where = "cpu" if call.map_location is None else call.map_location
    device = device_named(where) if isinstance(where, (str, bytes, torch.device)) else None
    if device is None or device.type != "cpu":
        raise UnsupportedError(
            f"{call.path}: into={into!r} is host memory, got map_location={where!r}; leave one of them out"
        )
    if call.mmap:
        raise UnsupportedError(f"{call.path}: mmap=True maps the file, and into={into!r} copies it; leave one out")
    if into == PINNED:
        check_available()
    return call._replace(into=into, map_location="cpu", mmap=False)
