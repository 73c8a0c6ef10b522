"""Copies between a slab of host memory and the memory of tensors, by address.

Order on a GPU. A copy out waits for the work queued on the stream that is current at the call: that stream computed the
tensor. A copy back waits for the work queued on the stream that was current when its *target* was named, right after
torch allocated it: torch reuses memory that earlier kernels may still use. The current stream is looked up each time,
because autograd runs backward on its own threads, under the streams of the forward pass.

In the other direction ``is_done`` and ``wait`` report finished copies, not queued ones: memory of a queued copy must
not be reused in the slab. Whoever uses the bytes earlier follows ``event``, on each stream that does.

No ``record_stream`` here: the caller keeps both memories until the copy is done.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple, Protocol

import torch

from fastio.devices import Accelerator, Event, copy_errors
from fastio.memory.raw_memory import host_bytes


class Copy(Protocol):
    """A copy that was begun. Each call raises its error."""

    def is_done(self) -> bool:
        """Return whether the copy is done. Raises RefusedError if it failed."""

    def wait(self) -> None:
        """Wait until the copy is done. Raises RefusedError if it failed."""


class Target(NamedTuple):
    """Memory that a copy will fill. ``fence``: an event that must happen first, None if nothing is pending."""

    address: int
    nbytes: int
    fence: Event | None = None


class Copies(Protocol):
    """``pin_for``: the accelerator that host memory must be pinned for. Raises RefusedError if a copy is refused."""

    pin_for: Accelerator | None

    def out(self, address: int, host: int, nbytes: int) -> Copy:
        """Begin to copy a tensor's bytes at ``address`` to host memory at ``host``."""

    def target(self, address: int, nbytes: int) -> Target:
        """Name the memory that a later ``back`` will fill, right after its allocation."""

    def back(self, host: int, target: Target) -> Copy:
        """Begin to copy host memory at ``host`` to all of the target."""

    def synchronize(self) -> None:
        """Wait for all copies, whose errors do not matter."""


class _CompletedCopy:
    """A copy that was done when it was begun."""

    def is_done(self) -> bool:
        return True

    def wait(self) -> None:
        return


COMPLETED = _CompletedCopy()


class DeviceCopies:
    """Copies between pinned host memory and an accelerator's memory, on the device's stream of each direction.

    ``within``: the memory that is called the host's here is the device's own.
    """

    def __init__(self, accelerator: Accelerator, within: bool = False) -> None:
        self.pin_for: Accelerator | None = accelerator
        self._accelerator = accelerator
        self._staging = accelerator.bytes_at if within else host_bytes
        self._devices: set[torch.device] = set()  # that there were copies of

    def out(self, address: int, host: int, nbytes: int) -> Copy:
        """See :class:`Copies`."""
        if nbytes == 0:
            return COMPLETED
        with copy_errors():
            source = self._accelerator.bytes_at(address, nbytes)
            fence = self._accelerator.current_stream(source.device).record_event()
            return self._copy(self._staging(host, nbytes), source, True, fence)

    def target(self, address: int, nbytes: int) -> Target:
        """See :class:`Copies`."""
        if nbytes == 0:
            return Target(address, 0)
        with copy_errors():
            device = self._accelerator.bytes_at(address, nbytes).device
            return Target(address, nbytes, self._accelerator.current_stream(device).record_event())

    def back(self, host: int, target: Target) -> Copy:
        """See :class:`Copies`."""
        if target.fence is None:
            return COMPLETED
        with copy_errors():
            destination = self._accelerator.bytes_at(target.address, target.nbytes)
            return self._copy(destination, self._staging(host, target.nbytes), False, target.fence)

    def synchronize(self) -> None:
        """See :class:`Copies`."""
        for device in self._devices:
            for to_host in (True, False):
                with contextlib.suppress(RuntimeError):
                    self._accelerator.copy_stream(device, to_host).synchronize()

    def _copy(self, destination: torch.Tensor, source: torch.Tensor, to_host: bool, fence: Event) -> Copy:
        device = source.device if to_host else destination.device
        self._devices.add(device)
        stream = self._accelerator.copy_stream(device, to_host)
        stream.wait_event(fence)
        with self._accelerator.under(stream):
            destination.copy_(source, non_blocking=True)
        return _StreamCopy(stream.record_event())


class _StreamCopy:
    """A copy on a stream, and the event that follows it."""

    __slots__ = ("event",)

    def __init__(self, event: Event) -> None:
        self.event = event

    def is_done(self) -> bool:
        with copy_errors():
            return bool(self.event.query())

    def wait(self) -> None:
        with copy_errors():
            self.event.synchronize()
