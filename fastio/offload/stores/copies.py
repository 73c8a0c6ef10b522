"""Copies between a slab of host memory and the memory that tensors lie in, by address.

Two versions of one thing: at once, where both sides are host memory, and on side streams, for CUDA memory.

Order on a GPU. A copy out waits for what was queued on the stream that is current when it is asked for: that stream
computed the tensor. A copy back waits for what was queued on the stream that was current when its *target* was named,
right after torch allocated it: torch hands out memory that kernels queued before may still use. The current stream is
asked for each time, for backward runs on threads of autograd, under the streams of the forward pass.

The other way round it is the host that waits: ``is_done`` and ``wait`` speak of copies that are over, not of copies
that are queued. The current stream alone could be made to wait instead, but what came back is also handed to nodes on
other streams, which would know nothing of it, and memory whose copy is merely queued must be neither given back to
torch nor, in the slab, to the next blob. It costs little: what is read ahead is mostly over when it is asked for, and
the kernels of the nodes before keep the GPU busy meanwhile.

No ``record_stream`` here: whoever asks for a copy keeps both memories until it is over.
"""

from __future__ import annotations

import ctypes
from typing import ClassVar, NamedTuple, Protocol

import torch

from fastio.memory.raw_memory import cuda_bytes, host_bytes
from fastio.memory.staging_buffers import copy_errors


class Ticket(Protocol):
    """A copy that was asked for. An error is raised each time it is asked."""

    def is_done(self) -> bool:
        """Whether the copy is over. Raises RefusedError if it failed."""

    def wait(self) -> None:
        """Until the copy is over. Raises RefusedError if it failed."""


class Target(NamedTuple):
    """Memory that a copy will fill. ``fence``: what must be over before, where that is not certain yet."""

    address: int
    nbytes: int
    fence: torch.cuda.Event | None = None


class Copies(Protocol):
    """``pinned``: whether host memory must be registered with CUDA. Raises RefusedError where a copy is refused."""

    pinned: ClassVar[bool]

    def out(self, address: int, host: int, nbytes: int) -> Ticket:
        """Begin to copy a tensor's bytes at ``address`` to host memory at ``host``."""

    def target(self, address: int, nbytes: int) -> Target:
        """Name the memory that a later ``back`` will fill, as soon as it was allocated."""

    def back(self, host: int, target: Target) -> Ticket:
        """Begin to copy host memory at ``host`` to all of the target."""


class _Over:
    """A copy that was over when it was asked for."""

    def is_done(self) -> bool:
        return True

    def wait(self) -> None:
        return


OVER = _Over()


class HostCopies:
    """Between host memory and host memory: at once, without the GIL."""

    pinned: ClassVar[bool] = False

    def out(self, address: int, host: int, nbytes: int) -> Ticket:
        """See :class:`Copies`."""
        ctypes.memmove(host, address, nbytes)
        return OVER

    def target(self, address: int, nbytes: int) -> Target:
        """See :class:`Copies`."""
        return Target(address, nbytes)

    def back(self, host: int, target: Target) -> Ticket:
        """See :class:`Copies`."""
        ctypes.memmove(target.address, host, target.nbytes)
        return OVER


class CudaCopies:
    """Between pinned host memory and the memory of any CUDA device: a side stream for each device and direction.

    Its order was tested on simulated streams; on a GPU it has not run yet.
    """

    pinned: ClassVar[bool] = True

    def __init__(self) -> None:
        self._streams: dict[tuple[torch.device, str], torch.cuda.Stream] = {}

    def out(self, address: int, host: int, nbytes: int) -> Ticket:
        """See :class:`Copies`."""
        if nbytes == 0:
            return OVER
        with copy_errors():
            source = cuda_bytes(address, nbytes)
            fence = torch.cuda.current_stream(source.device).record_event()
            return self._copy(host_bytes(host, nbytes), source, self._stream(source.device, "out"), fence)

    def target(self, address: int, nbytes: int) -> Target:
        """See :class:`Copies`."""
        if nbytes == 0:
            return Target(address, 0)
        with copy_errors():
            device = cuda_bytes(address, nbytes).device
            return Target(address, nbytes, torch.cuda.current_stream(device).record_event())

    def back(self, host: int, target: Target) -> Ticket:
        """See :class:`Copies`."""
        if target.fence is None:
            return OVER
        with copy_errors():
            destination = cuda_bytes(target.address, target.nbytes)
            stream = self._stream(destination.device, "back")
            return self._copy(destination, host_bytes(host, target.nbytes), stream, target.fence)

    def _stream(self, device: torch.device, direction: str) -> torch.cuda.Stream:
        stream = self._streams.get((device, direction))
        if stream is None:
            stream = self._streams[device, direction] = torch.cuda.Stream(device)
        return stream

    def _copy(
        self, destination: torch.Tensor, source: torch.Tensor, stream: torch.cuda.Stream, fence: torch.cuda.Event
    ) -> Ticket:
        stream.wait_event(fence)
        with torch.cuda.stream(stream):
            destination.copy_(source, non_blocking=True)
        return _Queued(stream.record_event())


class _Queued:
    """A copy on a stream, and the event that follows it."""

    __slots__ = ("_event",)

    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def is_done(self) -> bool:
        with copy_errors():
            return bool(self._event.query())

    def wait(self) -> None:
        with copy_errors():
            self._event.synchronize()
