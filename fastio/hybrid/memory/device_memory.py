"""The two memories of hybrid training: the device's, where compute runs, and the host's, with the parameters.

Two implementations. Without a GPU both are separate buffers of host memory, so the same bookkeeping runs as on a GPU.
With CUDA, host memory is pinned and has the same address on the GPU (unified addressing), copies run on a side stream
per direction, and compute waits for them by events.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar, Protocol

import torch

from fastio.memory.raw_memory import CudaBytes
from fastio.memory.staging_buffers import HostMemory


class PendingCopy(Protocol):
    """A copy that was begun."""

    def wait(self) -> None:
        """To the device: later compute sees the copy. To the host: the copy is done on return."""


class DeviceMemory(Protocol):
    """``measures``: whether times here are meaningful; if not, costs are simulated.

    ``asynchronous``: whether copies overlap compute.
    """

    device: torch.device
    pinned: ClassVar[bool]
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


class TwoBuffers:
    """Device and host are separate buffers of host memory; copies are synchronous."""

    pinned: ClassVar[bool] = False
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

    def synchronize(self) -> None:
        """See :class:`DeviceMemory`."""

    def record_time(self) -> float:
        """See :class:`DeviceMemory`."""
        return time.perf_counter()

    def seconds(self, since: float, until: float) -> float:
        """See :class:`DeviceMemory`."""
        return until - since


class Cuda:
    """Pinned host memory and the memory of one CUDA device.

    Hybrid's calls and their order are tested without a GPU, with copies made as late as allowed. It has not run on a
    GPU yet.
    """

    pinned: ClassVar[bool] = True
    asynchronous: ClassVar[bool] = True
    measures = True

    def __init__(self, device: torch.device) -> None:
        self.device = device if ":" in str(device) else torch.device("cuda", torch.cuda.current_device())
        self._to_device = torch.cuda.Stream(self.device)
        self._to_host = torch.cuda.Stream(self.device)

    def device_view(self, host: torch.Tensor, memory: HostMemory) -> torch.Tensor:
        """See :class:`DeviceMemory`."""
        view: Any = CudaBytes(host.data_ptr(), host.nbytes)
        view.memory = memory  # is unpinned after the last view
        with torch._C.DisableTorchFunction(), torch.cuda.device(self.device):
            return torch.as_tensor(view, device=self.device)

    def allocate(self, nbytes: int) -> torch.Tensor:
        """See :class:`DeviceMemory`."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def copy_to_device(self, device: torch.Tensor, host: torch.Tensor) -> PendingCopy:
        """See :class:`DeviceMemory`."""
        self._to_device.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._to_device):
            device.copy_(host, non_blocking=True)
        device.record_stream(self._to_device)
        return _CopyToDevice(self.device, self._to_device.record_event())

    def copy_to_host(self, host: torch.Tensor, device: torch.Tensor) -> PendingCopy:
        """See :class:`DeviceMemory`."""
        self._to_host.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._to_host):
            host.copy_(device, non_blocking=True)
        device.record_stream(self._to_host)
        return _CopyToHost(self._to_host.record_event())

    def synchronize(self) -> None:
        """See :class:`DeviceMemory`."""
        torch.cuda.current_stream(self.device).synchronize()
        self._to_device.synchronize()

    def record_time(self) -> torch.cuda.Event:
        """See :class:`DeviceMemory`."""
        event = torch.cuda.Event(enable_timing=True)
        torch.cuda.current_stream(self.device).record_event(event)
        return event

    def seconds(self, since: torch.cuda.Event, until: torch.cuda.Event) -> float:
        """See :class:`DeviceMemory`."""
        until.synchronize()
        return float(since.elapsed_time(until)) / 1e3


class _CopyToDevice:
    """A copy that the current stream must wait for."""

    def __init__(self, device: torch.device, event: torch.cuda.Event) -> None:
        self._device = device
        self._event = event

    def wait(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._event)


class _CopyToHost:
    """A copy that the host must wait for."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self) -> None:
        self._event.synchronize()


def device_memory_for(device: torch.device | str | None) -> DeviceMemory:
    """Return the memories for "cuda", "cuda:1", "cpu" (two buffers), or None: CUDA if there is one."""
    chosen = torch.device(device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")
    if chosen.type == "cpu":
        return TwoBuffers()
    if chosen.type != "cuda":
        raise ValueError(f"device is {str(chosen)!r}: expected a CUDA device, or 'cpu' for two buffers of host memory")
    return Cuda(chosen)
