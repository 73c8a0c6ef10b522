"""The two memories of hybrid training: the device's, where compute runs, and the host's, with the parameters.

Two implementations. Without a GPU both are separate buffers of host memory, so the same bookkeeping runs as on a GPU.
With an accelerator, host memory is pinned and compute may use it in place, copies run on the device's stream of their
direction, and compute waits for them by events.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import torch

from fastio import devices
from fastio.devices import Accelerator, Event, Stream
from fastio.devices.argument import present_device
from fastio.memory.staging_buffers import HostMemory


class PendingCopy(Protocol):
    """A copy that was begun."""

    def wait(self) -> None:
        """To the device: later compute sees the copy. To the host: the copy is done on return."""


class PendingMove(Protocol):
    """A copy to the host that was begun. The caller keeps the device's tensor until compute is behind the copy."""

    def precede_compute(self) -> None:
        """Let later compute begin when the copy is done."""


class DeviceMemory(Protocol):
    """``measures``: whether times here are meaningful; if not, costs are simulated.

    ``asynchronous``: whether copies overlap compute.
    """

    device: torch.device
    pin_for: Accelerator | None
    asynchronous: ClassVar[bool]
    measures: bool

    def device_view(self, host: torch.Tensor, memory: Any) -> torch.Tensor:
        """Return host bytes as compute sees them, and keep ``memory`` alive with them."""

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Allocate bytes of device memory."""

    def copy_to_device(self, device: torch.Tensor, host: torch.Tensor) -> PendingCopy:
        """Begin to copy host bytes to the device, after the compute queued so far."""

    def copy_to_host(self, host: torch.Tensor, device: torch.Tensor) -> PendingCopy:
        """Begin to copy a device tensor to a host tensor of the same shape, after the compute queued so far."""

    def move_to_host(self, host: torch.Tensor, device: torch.Tensor) -> PendingMove:
        """As :meth:`copy_to_host`, for a tensor whose memory later compute is to reuse."""

    def synchronize(self) -> None:
        """Wait for compute and all copies to the device: the host may then overwrite what they read."""

    def record_time(self) -> Any:
        """Return a mark of the current point in compute."""

    def seconds(self, since: Any, until: Any) -> float:
        """Return the seconds between two marks, both of them past."""


class CompletedCopy:
    """A copy that was done when it was begun."""

    def wait(self) -> None:
        """Return at once."""

    def precede_compute(self) -> None:
        """Return at once."""


class TwoBuffers:
    """Device and host are separate buffers of host memory; copies are synchronous."""

    pin_for: Accelerator | None = None
    asynchronous: ClassVar[bool] = False
    measures = False

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def device_view(self, host: torch.Tensor, memory: Any) -> torch.Tensor:
        """See :class:`DeviceMemory`."""
        return host

    def allocate(self, nbytes: int) -> torch.Tensor:
        """See :class:`DeviceMemory`."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")

    def copy_to_device(self, device: torch.Tensor, host: torch.Tensor) -> PendingCopy:
        """See :class:`DeviceMemory`."""
        device.copy_(host)
        return CompletedCopy()

    def copy_to_host(self, host: torch.Tensor, device: torch.Tensor) -> PendingCopy:
        """See :class:`DeviceMemory`."""
        host.copy_(device)
        return CompletedCopy()

    def move_to_host(self, host: torch.Tensor, device: torch.Tensor) -> PendingMove:
        """See :class:`DeviceMemory`."""
        host.copy_(device)
        return CompletedCopy()

    def synchronize(self) -> None:
        """See :class:`DeviceMemory`."""

    def record_time(self) -> float:
        """See :class:`DeviceMemory`."""
        return time.perf_counter()

    def seconds(self, since: float, until: float) -> float:
        """See :class:`DeviceMemory`."""
        return until - since


class AcceleratorMemory:
    """Pinned host memory and the memory of one accelerator.

    Tested on a simulated accelerator; it has not run on a GPU yet.
    """

    asynchronous: ClassVar[bool] = True
    measures = True

    def __init__(self, accelerator: Accelerator, device: torch.device) -> None:
        self.pin_for: Accelerator | None = accelerator
        self._accelerator = accelerator
        self.device = accelerator.with_index(device)
        self._to_device = accelerator.copy_stream(self.device, to_host=False)
        self._to_host = accelerator.copy_stream(self.device, to_host=True)

    def device_view(self, host: torch.Tensor, memory: HostMemory) -> torch.Tensor:
        """See :class:`DeviceMemory`. The memory is unpinned after the last view."""
        return self._accelerator.host_view(host, memory, self.device)

    def allocate(self, nbytes: int) -> torch.Tensor:
        """See :class:`DeviceMemory`."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def copy_to_device(self, device: torch.Tensor, host: torch.Tensor) -> PendingCopy:
        """See :class:`DeviceMemory`."""
        self._to_device.wait_stream(self._compute())
        with self._accelerator.under(self._to_device):
            device.copy_(host, non_blocking=True)
        device.record_stream(self._to_device)
        return _CopyToDevice(self._compute, self._to_device.record_event())

    def copy_to_host(self, host: torch.Tensor, device: torch.Tensor) -> PendingCopy:
        """See :class:`DeviceMemory`."""
        event = self._begin_copy_to_host(host, device)
        device.record_stream(self._to_host)
        return _CopyToHost(event)

    def move_to_host(self, host: torch.Tensor, device: torch.Tensor) -> PendingMove:
        """See :class:`DeviceMemory`.

        Without ``record_stream``, which makes the allocator keep the memory until the host sees the copy done: the host
        runs ahead of the device, and backward would get other memory for each gradient.
        """
        return _MoveToHost(self._compute, self._begin_copy_to_host(host, device))

    def _begin_copy_to_host(self, host: torch.Tensor, device: torch.Tensor) -> Event:
        self._to_host.wait_stream(self._compute())
        with self._accelerator.under(self._to_host):
            host.copy_(device, non_blocking=True)
        return self._to_host.record_event()

    def synchronize(self) -> None:
        """See :class:`DeviceMemory`."""
        self._compute().synchronize()
        self._to_device.synchronize()

    def record_time(self) -> Event:
        """See :class:`DeviceMemory`."""
        return self._accelerator.timed_event(self.device)

    def seconds(self, since: Event, until: Event) -> float:
        """See :class:`DeviceMemory`."""
        until.synchronize()
        return float(since.elapsed_time(until)) / 1e3

    def _compute(self) -> Stream:
        """The stream of this thread's compute."""
        return self._accelerator.current_stream(self.device)


class _CopyToDevice:
    """A copy that the current stream must wait for."""

    def __init__(self, current_stream: Callable[[], Stream], event: Event) -> None:
        self._current_stream = current_stream
        self._event = event

    def wait(self) -> None:
        self._current_stream().wait_event(self._event)


class _MoveToHost:
    """A copy that compute must wait for: the stream that made the tensor, and the current one if it is another."""

    def __init__(self, current_stream: Callable[[], Stream], event: Event) -> None:
        self._current_stream = current_stream
        self._made_on = current_stream()
        self._event = event

    def precede_compute(self) -> None:
        self._made_on.wait_event(self._event)
        here = self._current_stream()
        if here != self._made_on:
            here.wait_event(self._event)


class _CopyToHost:
    """A copy that the host must wait for."""

    def __init__(self, event: Event) -> None:
        self._event = event

    def wait(self) -> None:
        self._event.synchronize()


def device_memory_for(device: torch.device | str | None) -> DeviceMemory:
    """Return the memories for "cuda", "cuda:1", "cpu" (two buffers), or None: an accelerator if there is one."""
    here = devices.available() if device is None else []
    chosen = present_device("device", here[0].kind if device is None and here else device)
    if chosen.type == "cpu":
        return TwoBuffers()
    accelerator = devices.find(chosen)
    if accelerator is None:
        raise ValueError(f"device is {str(chosen)!r}: expected a CUDA device, or 'cpu' for two buffers of host memory")
    return AcceleratorMemory(accelerator, chosen)
