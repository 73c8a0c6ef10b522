"""What fastio needs of an accelerator: streams, events, memory by its address, host memory that its copies may use.

Most of it is torch's device module (``torch.cuda``, or one like it), under the names that are common to all of them.
A kind of accelerator adds what torch has no common function for.
"""

from __future__ import annotations

import abc
import contextlib
import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch

from fastio.errors import RefusedError, ToolUnavailableError
from fastio.runtime.handled_errors import HandledErrors

Stream = Any  # torch.cuda.Stream and those like it; torch.Stream lacks some of their methods before torch 2.7
Event = Any
Copy = tuple[int, int, int]
"""An address in host memory, or in a slab, one on a device, and the bytes to copy."""


class Mark:
    """A place in a stream's queue. What is queued behind it in other streams begins when all before it has ended.

    Until :meth:`set` the mark moves on with the stream. Works that were queued together share one: a stream that
    follows it is not told again for each of them. ``number``: of the marks of one stream, by their order.
    """

    __slots__ = ("_event", "_follower", "_stream", "number")

    def __init__(self, stream: Stream, number: int = 0, event: Event | None = None) -> None:
        self.number = number
        self._stream = stream
        self._event = event  # that was recorded in the stream
        self._follower: Stream | None = None  # the stream that was told last

    @property
    def is_set(self) -> bool:
        """Whether the mark has its place."""
        return self._event is not None

    def set(self) -> Event:
        """Give the mark its place, if it has none; return the event there."""
        if self._event is None:
            self._event = self._stream.record_event()
        return self._event

    def precede(self, stream: Stream) -> None:
        """Let what is queued next in a stream begin after this."""
        if self._follower is None or stream != self._follower:  # torch's streams do not differ from None
            stream.wait_event(self.set())
            self._follower = stream


class Accelerator(abc.ABC):
    """One kind of accelerator. ``kind`` is the type of its devices, as in ``torch.device(kind, 0)``.

    ``has_kvikio``: kvikio (NVIDIA's cuFile) moves its memory to and from files.
    """

    has_kvikio = False

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._copy_streams: dict[tuple[torch.device, bool], Stream] = {}

    @functools.cached_property
    def module(self) -> Any:
        """torch's module for this kind of device."""
        return torch.get_device_module(self.kind)

    @abc.abstractmethod
    def why_unavailable(self) -> tuple[str, str]:
        """The reason and the cure, where there is no device."""

    @abc.abstractmethod
    def bytes_at(self, address: int, nbytes: int) -> torch.Tensor:
        """Device memory as a uint8 tensor of shape ``(nbytes,)``, on the device of the address."""

    def kvikio_memory(self, address: int, nbytes: int) -> Any:
        """Device memory as kvikio takes it."""
        return self.bytes_at(address, nbytes)

    def native_copies(self) -> int:
        """The address of a table of functions by which native code copies to and from these devices.

        ``native/device/device_copies.hpp`` says what they do. The table stays valid. ToolUnavailableError if there is
        none.
        """
        raise ToolUnavailableError("pinned", f"fastio has no native copies for {self.kind} devices")

    def open_window(self, address: int, nbytes: int) -> Any:
        """Device memory at an address (``address``) through which a disk reaches it, until ``close``.

        RefusedError if there is none.
        """
        raise RefusedError(f"fastio maps no memory of {self.kind} devices for a disk")

    def crc32_of_ranges(self, ranges: Sequence[tuple[int, int]], device: torch.device) -> list[int]:
        """The CRC-32 of each range of a device's memory, (address, bytes), computed there, as ``zlib.crc32`` would.

        It runs on the current stream, and this waits for it: work on other streams must have ended. The host gets no
        bytes of the ranges. Raises ToolUnavailableError where the device cannot do it.
        """
        raise ToolUnavailableError("crc32", f"fastio has no CRC-32 kernel for {self.kind} devices")

    @abc.abstractmethod
    def host_view(self, host: torch.Tensor, owner: object, device: torch.device) -> torch.Tensor:
        """Pinned host bytes as a tensor on the device, without a copy. It keeps ``owner`` alive."""

    @abc.abstractmethod
    def pin(self, address: int, nbytes: int) -> None:
        """Register host memory, at its exact size, with all devices of this kind. RefusedError if the driver refuses.

        torch's caching allocator of pinned memory rounds sizes up to powers of two.
        """

    @abc.abstractmethod
    def unpin(self, address: int) -> None:
        """End a registration; nothing on a device may use the memory any more. RefusedError if the driver refuses."""

    def unpin_unused(self, address: int) -> None:
        """Wait for all work on all devices, then end a registration. RefusedError if either fails.

        Kernels and copies on any stream may still use the memory, and the driver does not promise to wait for them. A
        device without a context has no work, and waiting for it would make one.
        """
        try:
            for index in range(self.module.device_count()):
                if self.has_context(index):
                    self.module.synchronize(index)
        except RuntimeError as error:
            raise RefusedError(f"unpinning: waiting for a device failed: {error}") from error
        self.unpin(address)

    def has_context(self, index: int) -> bool:
        """Whether this process uses a device already, so that work may be queued on it."""
        return self.is_initialized()

    def is_available(self) -> bool:
        """Whether this machine has such a device."""
        return bool(self.module.is_available())

    def is_initialized(self) -> bool:
        """Whether this process uses such a device already."""
        return bool(self.module.is_initialized())

    def with_index(self, device: torch.device) -> torch.device:
        """The device with its index: the current one's where it has none."""
        return device if ":" in str(device) else torch.device(self.kind, self.module.current_device())

    def identity(self, device: torch.device) -> str:
        """What makes devices equally fast: type and model, as ``"cuda NVIDIA H100 80GB HBM3"``.

        A kind that knows the NUMA node adds it: a disk may be nearer to one node's devices.
        """
        get = getattr(self.module, "get_device_name", None)
        return self.kind if get is None else f"{self.kind} {get(device)}"

    def memory_limit(self, device: torch.device) -> int | None:
        """Bytes of a device's memory that torch can give this process: what is free, and what torch has reserved.

        None if torch does not tell.
        """
        module = self.module
        if not hasattr(module, "mem_get_info"):
            return None
        free = int(module.mem_get_info(device)[0])
        return free + int(module.memory_reserved(device))

    def memory_allocated(self, device: torch.device) -> int:
        """Bytes in tensors on a device."""
        return int(self.module.memory_allocated(device))

    def peak_memory(self, device: torch.device) -> int:
        """The most bytes that tensors on a device had since :meth:`reset_peak_memory`."""
        return int(self.module.max_memory_allocated(device))

    def reset_peak_memory(self, device: torch.device) -> None:
        """Begin to measure :meth:`peak_memory` anew. It is torch's own measure, which programs may read too."""
        self.module.reset_peak_memory_stats(device)

    def out_of_memory_errors(self, device: torch.device) -> int:
        """How often torch has raised OutOfMemoryError for a device; 0 where it does not count."""
        return 0

    def begin_convolution(self, device: torch.device, nbytes: int, fastest: bool) -> None:  # noqa: B027 - may do nothing
        """Let the convolution that is issued next, of ``nbytes`` of input, take its fastest algorithm or a small one.

        A small one needs little workspace. Without a choice, this does nothing. OutOfMemoryError if a modelled
        workspace has no room.
        """

    def end_convolution(self) -> None:  # noqa: B027
        """It was issued: undo what :meth:`begin_convolution` set."""

    def synchronize(self, device: torch.device) -> None:
        """Wait for all work queued on a device, on any stream. RuntimeError if some of it failed."""
        self.module.synchronize(device)

    def new_stream(self, device: torch.device) -> Stream:
        """A stream of torch's pool."""
        return self.module.Stream(device)

    def copy_stream(self, device: torch.device, to_host: bool) -> Stream:
        """The stream of all copies of one direction between a device and host memory.

        A device has one copy engine for each direction: copies of several streams would take turns in pieces, and what
        compute waits for next would share the bandwidth with what it needs later. On one stream they go in the order in
        which they are issued: each user issues them in the order of need, and only a little ahead.
        """
        key = (self.with_index(device), to_host)
        stream = self._copy_streams.get(key)
        if stream is None:
            stream = self._copy_streams.setdefault(key, self.new_stream(key[0]))
        return stream

    def current_stream(self, device: torch.device) -> Stream:
        """The stream on which torch queues this thread's work now."""
        return self.module.current_stream(device)

    def mark(self, device: torch.device) -> Mark:
        """The mark of the current stream as it is now."""
        mark = Mark(self.current_stream(device))
        mark.set()
        return mark

    def copy(self, stream: Stream, copies: Sequence[Copy], to_host: bool) -> None:
        """Begin to copy between pinned memory and a device, in order, on a stream of that device.

        RuntimeError or RefusedError if a copy is refused.
        """
        with self.under(stream):
            for host, address, nbytes in copies:
                if nbytes:
                    on_host = torch.frombuffer((ctypes.c_ubyte * nbytes).from_address(host), dtype=torch.uint8)
                    on_device = self.bytes_at(address, nbytes)
                    (on_host if to_host else on_device).copy_(on_device if to_host else on_host, non_blocking=True)

    def under(self, stream: Stream | None) -> contextlib.AbstractContextManager[Any]:
        """A context in which torch queues work on a stream; None changes nothing."""
        return contextlib.nullcontext() if stream is None else self.module.stream(stream)

    def on(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        """A context in which a device is the current one."""
        made: contextlib.AbstractContextManager[Any] = self.module.device(device)
        return made

    def timed_event(self, device: torch.device) -> Event:
        """An event that has just been recorded on the current stream, and knows its time."""
        with self.on(device):
            event = self.module.Event(enable_timing=True)
            event.record(self.current_stream(device))
        return event

    def is_capturing(self) -> bool:
        """Whether the current stream captures a graph."""
        return bool(self.module.is_current_stream_capturing())

    def random_states(self) -> list[torch.Tensor]:
        """The states of the random generators of all devices; none if this process uses no device yet."""
        return list(self.module.get_rng_state_all()) if self.is_initialized() else []

    def set_random_states(self, states: list[torch.Tensor]) -> None:
        """Set the generators of the devices that there are; further states are ignored."""
        for number, state in enumerate(states[: self.module.device_count()]):
            self.module.set_rng_state(state.cpu(), number)


def copy_errors() -> HandledErrors[RuntimeError]:
    """Around copies between a device and pinned memory: torch's errors become RefusedError."""
    return HandledErrors(RuntimeError, _refuse_copy)


def refused_copy(error: RuntimeError) -> RefusedError:
    """Return the error for torch's error of a copy between a device and pinned memory."""
    return RefusedError(f"a copy between a GPU and pinned memory failed: {error}")


def _refuse_copy(error: RuntimeError) -> None:
    raise refused_copy(error) from error
