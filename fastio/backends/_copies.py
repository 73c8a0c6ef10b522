"""Asynchronous copies between host staging memory and the memory of extents.

:class:`DeviceCopies` uses a side stream per device; :class:`ThreadCopies` uses a thread, for host memory only.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch

from fastio import devices
from fastio.backends import _memory
from fastio.devices import Accelerator, copy_errors
from fastio.errors import ToolUnavailableError
from fastio.memory.raw_memory import host_bytes
from fastio.transports.transport import Extent


class Copies(Protocol):
    """Copies, run in the order of the calls. The caller keeps all memory alive until ``close``."""

    @classmethod
    def kinds(cls) -> frozenset[str]:
        """The types of device of the extents. Raises ToolUnavailableError where this kind of copy does not work."""

    @classmethod
    def pin_for(cls) -> Accelerator | None:
        """The accelerator that staging memory must be pinned for."""

    def to_host(self, address: int, extent: Extent) -> None:
        """Copy all of an extent's memory to host memory at ``address``."""

    def from_host(self, extent: Extent, address: int) -> None:
        """Copy host memory at ``address`` to all of an extent's memory."""

    def mark(self) -> Callable[[], None]:
        """Returns a function that waits for every copy started so far, and raises if one failed."""

    def close(self) -> None:
        """Wait for every copy. Raises nothing: the functions from ``mark`` report errors."""


class ThreadCopies:
    """Copies of host memory, on one thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fastio-copies")
        self._copies: list[Future[object]] = []

    @classmethod
    def kinds(cls) -> frozenset[str]:
        """See :class:`Copies`."""
        return frozenset({"cpu"})

    @classmethod
    def pin_for(cls) -> Accelerator | None:
        """See :class:`Copies`."""
        return None

    def to_host(self, address: int, extent: Extent) -> None:
        """See :class:`Copies`."""
        self._copies.append(self._thread.submit(ctypes.memmove, address, extent.address, extent.nbytes))

    def from_host(self, extent: Extent, address: int) -> None:
        """See :class:`Copies`."""
        self._copies.append(self._thread.submit(ctypes.memmove, extent.address, address, extent.nbytes))

    def mark(self) -> Callable[[], None]:
        """See :class:`Copies`."""
        copies, self._copies = self._copies, []

        def wait() -> None:
            for copy in copies:
                copy.result()

        return wait

    def close(self) -> None:
        """See :class:`Copies`."""
        self._thread.shutdown(wait=True)


class DeviceCopies:
    """Asynchronous copies to and from an accelerator, on one side stream per device; host extents are copied at once.

    The first copy of a device waits for all work on it: kernels that compute a saved tensor, or that still use memory
    which torch reused for a loaded one, may be on any stream of any thread.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, devices.Stream] = {}
        self._touched: set[torch.device] = set()

    @classmethod
    def kinds(cls) -> frozenset[str]:
        """See :class:`Copies`."""
        here = devices.available()
        if not here:
            raise ToolUnavailableError("pinned", *devices.of("cuda").why_unavailable())
        return frozenset(accelerator.kind for accelerator in here)

    @classmethod
    def pin_for(cls) -> Accelerator | None:
        """See :class:`Copies`."""
        return devices.available()[0]

    def to_host(self, address: int, extent: Extent) -> None:
        """See :class:`Copies`."""
        if extent.device == "cpu":
            ctypes.memmove(address, extent.address, extent.nbytes)
        else:
            staging = host_bytes(address, extent.nbytes)
            self._copy(staging, _memory.tensor(extent))

    def from_host(self, extent: Extent, address: int) -> None:
        """See :class:`Copies`."""
        if extent.device == "cpu":
            ctypes.memmove(extent.address, address, extent.nbytes)
        else:
            staging = host_bytes(address, extent.nbytes)
            self._copy(_memory.tensor(extent), staging)

    def mark(self) -> Callable[[], None]:
        """See :class:`Copies`."""
        events = [self._streams[device].record_event() for device in self._touched]
        self._touched.clear()

        def wait() -> None:
            with copy_errors():
                for event in events:
                    event.synchronize()

        return wait

    def close(self) -> None:
        """See :class:`Copies`."""
        with contextlib.suppress(RuntimeError):
            for stream in self._streams.values():
                stream.synchronize()

    def _copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        device = destination.device if source.device.type == "cpu" else source.device
        accelerator = devices.of(device)
        with copy_errors():
            if device not in self._streams:
                accelerator.synchronize(device)
                self._streams[device] = accelerator.new_stream(device)
            self._touched.add(device)
            with accelerator.under(self._streams[device]):
                destination.copy_(source, non_blocking=True)
