"""Copies between tensors and the memory of a slab, by address: at once from the CPU, else on side streams of a device.

Order on a GPU. A copy out follows the stream of the operator that computed the bytes. A copy back follows an event that
was recorded right after torch allocated its target: torch reuses memory that earlier kernels may still use. The current
stream is looked up each time, because autograd runs backward on its own threads, under the streams of the forward pass.

Memory of the slab is reused once its copy has ended, or by copies that follow it. Streams that use the bytes earlier
follow the copy's event. No ``record_stream`` here: the caller keeps both memories until the copy has ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from fastio._native import streaming_copy
from fastio.devices import Accelerator, Event, Stream, copy_errors

_REFUSED = copy_errors()


class CpuCopies:
    """Copies that have ended when the call returns; the GIL is released meanwhile.

    Raises RefusedError if a copy is refused, or has failed. ``pin_for``: the accelerator that the slab is pinned for.
    """

    pin_for: Accelerator | None = None
    issued = 0  # copies out
    streams: Sequence[Stream] = ()

    def out(self, address: int, host: int, nbytes: int, computed_by: Stream | None = None) -> Event | None:
        """Begin to copy a tensor's bytes to the slab, behind a stream: by default the current one.

        Returns the event that follows the copy; None if it has ended.
        """
        streaming_copy(host, address, nbytes)
        return None

    def fence(self, stream: Stream | None = None) -> Event | None:
        """Return the event that a copy back follows, on a stream: by default the current one.

        Call it right after its target was allocated there.
        """
        return None

    def back(self, host: int, address: int, nbytes: int, fence: Event | None) -> Event | None:
        """Begin to copy bytes of the slab to ``address``. Returns as ``out`` does."""
        streaming_copy(address, host, nbytes)
        return None

    def follow(self, copied: Event, number: int) -> None:
        """Let the copies back to come follow the ``number``th copy out, whose event is ``copied``."""

    def follow_streams(self, streams: Sequence[Stream]) -> None:
        """Let the copies out to come follow all that is queued on these streams."""

    def is_done(self, event: Event | None) -> bool:
        """Return whether a copy has ended. Raises its error."""
        return True

    def wait(self, event: Event | None) -> None:
        """Wait for a copy. Raises its error."""

    def synchronize(self) -> None:
        """Wait for all copies, whose errors do not matter."""


class DeviceCopies(CpuCopies):
    """Copies on the two streams of a device, one for each direction, that all copies of the device share.

    ``within``: the slab is memory of the device, too.
    """

    def __init__(self, accelerator: Accelerator, device: torch.device, within: bool = False) -> None:
        self.pin_for = accelerator
        self._accelerator = accelerator
        self._device = device
        self._within = within
        self.streams = self._out, self._back = [accelerator.copy_stream(device, to_host) for to_host in (True, False)]
        self._followed = 0  # the latest copy out that the copies back follow

    def out(self, address: int, host: int, nbytes: int, computed_by: Stream | None = None) -> Event | None:
        """See :class:`CpuCopies`."""
        with _REFUSED:
            self._out.wait_stream(computed_by or self._accelerator.current_stream(self._device))
            self.issued += 1
            return self._copy(self._out, host, address, nbytes, True)

    def fence(self, stream: Stream | None = None) -> Event:
        """See :class:`CpuCopies`."""
        with _REFUSED:
            return (stream or self._accelerator.current_stream(self._device)).record_event()

    def back(self, host: int, address: int, nbytes: int, fence: Event | None) -> Event | None:
        """See :class:`CpuCopies`."""
        with _REFUSED:
            self._back.wait_event(fence)
            return self._copy(self._back, address, host, nbytes, False)

    def follow(self, copied: Event, number: int) -> None:
        """See :class:`CpuCopies`. Copies out are in order, so it waits only for one that is later than the last."""
        if number > self._followed:
            with _REFUSED:
                self._back.wait_event(copied)
            self._followed = number

    def follow_streams(self, streams: Sequence[Stream]) -> None:
        """See :class:`CpuCopies`."""
        with _REFUSED:
            for stream in streams:
                if stream is not self._out:
                    self._out.wait_stream(stream)

    def is_done(self, event: Event | None) -> bool:
        """See :class:`CpuCopies`."""
        with _REFUSED:
            return event is None or bool(event.query())

    def wait(self, event: Event | None) -> None:
        """See :class:`CpuCopies`."""
        with _REFUSED:
            if event is not None:
                event.synchronize()

    def synchronize(self) -> None:
        """See :class:`CpuCopies`."""
        for stream in self.streams:
            with contextlib.suppress(RuntimeError):
                stream.synchronize()

    def _copy(self, stream: Stream, destination: int, source: int, nbytes: int, to_host: bool) -> Any:
        if nbytes == 0:
            return None
        if self._within:
            with self._accelerator.under(stream):
                self._accelerator.bytes_at(destination, nbytes).copy_(
                    self._accelerator.bytes_at(source, nbytes), non_blocking=True
                )
        else:
            self._accelerator.copy(stream, destination, source, nbytes, to_host)
        return stream.record_event()
