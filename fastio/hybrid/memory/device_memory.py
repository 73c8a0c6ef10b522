"""The two memories of hybrid training: where compute runs, and the host's, which holds the parameters.

Two versions of one thing. On a machine without a GPU both are host memory, in separate buffers: what the bookkeeping
does there is what it does on a GPU. With CUDA host memory is pinned and seen at the same address (unified addressing),
copies run on a side stream for each direction, and compute waits for them by events.
"""

from __future__ import annotations

import time
import weakref
from typing import Any, ClassVar, Protocol

import torch

from fastio.memory.raw_memory import CudaBytes
from fastio.memory.staging_buffers import HostMemory


class Arrival(Protocol):
    """A copy that was asked for."""

    def wait(self) -> None:
        """For a copy to the device: what is computed from now on sees it. For one to the host: it is over."""


class Memories(Protocol):
    """``measures``: whether times of this machine mean anything; where they do not, costs are simulated.

    ``asynchronous``: whether copies go on while compute does.
    """

    device: torch.device
    pinned: ClassVar[bool]
    asynchronous: ClassVar[bool]
    measures: bool

    def seen(self, host: torch.Tensor, memory: Any) -> torch.Tensor:
        """Bytes of host memory as compute sees them. ``memory`` is kept alive with it."""

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Bytes of the device's memory."""

    def bring(self, device: torch.Tensor, host: torch.Tensor) -> Arrival:
        """Begin to copy host bytes to the device's, after what was computed so far."""

    def take(self, host: torch.Tensor, device: torch.Tensor) -> Arrival:
        """Begin to copy a tensor of the device to the host's of the same shape, after what was computed so far."""

    def settle(self) -> None:
        """Until compute, and every copy to the device, is over: the host may then write what they read."""

    def mark(self) -> Any:
        """This moment of compute."""

    def seconds(self, since: Any, until: Any) -> float:
        """Between two moments, which are over."""


class Over:
    """A copy that was over when it was asked for."""

    def wait(self) -> None:
        """Nothing to wait for."""


class TwoBuffers:
    """Device and host are separate buffers of host memory; copies are made at once."""

    pinned: ClassVar[bool] = False
    asynchronous: ClassVar[bool] = False
    measures = False

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def seen(self, host: torch.Tensor, memory: Any) -> torch.Tensor:
        """See :class:`Memories`."""
        return host

    def allocate(self, nbytes: int) -> torch.Tensor:
        """See :class:`Memories`."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")

    def bring(self, device: torch.Tensor, host: torch.Tensor) -> Arrival:
        """See :class:`Memories`."""
        device.copy_(host)
        return Over()

    def take(self, host: torch.Tensor, device: torch.Tensor) -> Arrival:
        """See :class:`Memories`."""
        host.copy_(device)
        return Over()

    def settle(self) -> None:
        """See :class:`Memories`."""

    def mark(self) -> float:
        """See :class:`Memories`."""
        return time.perf_counter()

    def seconds(self, since: float, until: float) -> float:
        """See :class:`Memories`."""
        return until - since


class Cuda:
    """Pinned host memory and the memory of one CUDA device.

    What Hybrid asks of it, and in which order, is tested without a GPU, on copies that are made as late as they may be.
    On a GPU it has not run yet.
    """

    pinned: ClassVar[bool] = True
    asynchronous: ClassVar[bool] = True
    measures = True

    def __init__(self, device: torch.device) -> None:
        self.device = device if ":" in str(device) else torch.device("cuda", torch.cuda.current_device())
        self._bringing = torch.cuda.Stream(self.device)
        self._taking = torch.cuda.Stream(self.device)
        self._unpinning: set[int] = set()

    def seen(self, host: torch.Tensor, memory: HostMemory) -> torch.Tensor:
        """See :class:`Memories`."""
        if memory.address not in self._unpinning:  # after the last view: kernels may still read what was handed out
            self._unpinning.add(memory.address)
            weakref.finalize(memory, torch.cuda.cudart().cudaHostUnregister, memory.address)
        view: Any = CudaBytes(host.data_ptr(), host.nbytes)
        view.memory = memory
        with torch._C.DisableTorchFunction(), torch.cuda.device(self.device):
            return torch.as_tensor(view, device=self.device)

    def allocate(self, nbytes: int) -> torch.Tensor:
        """See :class:`Memories`."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def bring(self, device: torch.Tensor, host: torch.Tensor) -> Arrival:
        """See :class:`Memories`."""
        self._bringing.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._bringing):
            device.copy_(host, non_blocking=True)
        device.record_stream(self._bringing)
        return _ForCompute(self.device, self._bringing.record_event())

    def take(self, host: torch.Tensor, device: torch.Tensor) -> Arrival:
        """See :class:`Memories`."""
        self._taking.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._taking):
            host.copy_(device, non_blocking=True)
        device.record_stream(self._taking)
        return _ForHost(self._taking.record_event())

    def settle(self) -> None:
        """See :class:`Memories`."""
        torch.cuda.current_stream(self.device).synchronize()
        self._bringing.synchronize()

    def mark(self) -> torch.cuda.Event:
        """See :class:`Memories`."""
        event = torch.cuda.Event(enable_timing=True)
        torch.cuda.current_stream(self.device).record_event(event)
        return event

    def seconds(self, since: torch.cuda.Event, until: torch.cuda.Event) -> float:
        """See :class:`Memories`."""
        until.synchronize()
        return float(since.elapsed_time(until)) / 1e3


class _ForCompute:
    """A copy that the stream of whoever asks is to wait for."""

    def __init__(self, device: torch.device, event: torch.cuda.Event) -> None:
        self._device = device
        self._event = event

    def wait(self) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._event)


class _ForHost:
    """A copy that the host is to wait for."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def wait(self) -> None:
        self._event.synchronize()


def memories_of(device: torch.device | str | None) -> Memories:
    """The memories for a device: "cuda", "cuda:1", "cpu" (two buffers), or None for CUDA where there is one."""
    chosen = torch.device(device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")
    if chosen.type == "cpu":
        return TwoBuffers()
    if chosen.type != "cuda":
        raise ValueError(f"device is {str(chosen)!r}: Hybrid knows CUDA devices, and 'cpu' for two buffers of memory")
    return Cuda(chosen)
