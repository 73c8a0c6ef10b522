"""Copies between saved tensors and host memory: at once from the CPU, else on side streams of the device."""

from __future__ import annotations

import contextlib

import torch

from fastio._native import streaming_copy
from fastio.devices import Accelerator, Event, Stream, copy_errors, refused_copy
from fastio.errors import FastIOError
from fastio.offload.autograd.buffer import Buffer
from fastio.offload.autograd.saved_tensor import SavedTensor


class CpuCopies:
    """Copies that have ended when the call returns; the GIL is released meanwhile. Host memory is given by address.

    Raises RefusedError if a copy is refused, or has failed.
    """

    def out(self, saved: SavedTensor, host: int) -> Event | None:
        """Begin to copy a saved tensor's bytes to host memory; return what follows the copy, None if it has ended."""
        streaming_copy(host, saved.address, saved.stored_nbytes)
        return None

    def back(self, saved: SavedTensor, buffer: Buffer, host: int) -> Event | None:
        """Begin to copy to a buffer, just allocated on the current stream. Sets the saved tensor's ``home``."""
        streaming_copy(buffer.address, host, saved.stored_nbytes)
        return None

    def follow_all(self) -> None:
        """Let the copies out to come follow all copies so far: host memory that these use may be used again."""

    def wait(self, event: Event | None) -> None:
        """Wait for a copy. Raises its error."""

    def synchronize(self) -> None:
        """Wait for all copies."""


class StreamCopies(CpuCopies):
    """Copies on each device's stream of their direction. The host never waits for them."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._out: dict[torch.device, Stream] = {}
        self._back: dict[torch.device, Stream] = {}
        self._copies = 0  # out, that were issued
        self._waited: dict[torch.device, int] = {}  # the latest copy out that the stream of the copies back follows

    def out(self, saved: SavedTensor, host: int) -> Event:
        """See :class:`CpuCopies`."""
        try:
            stream = self._out.get(saved.device) or self._new_stream(saved.device, out=True)
            stream.wait_stream(saved.stream)
            self._copies += 1
            saved.copied_number = self._copies
            return self._copy(stream, host, saved.address, saved.stored_nbytes, True)
        except RuntimeError as error:
            raise refused_copy(error) from error

    def back(self, saved: SavedTensor, buffer: Buffer, host: int) -> Event:
        """See :class:`CpuCopies`."""
        device = saved.device
        try:
            stream = self._back.get(device) or self._new_stream(device, out=False)
            saved.home = self._accelerator.current_stream(device)
            stream.wait_stream(saved.home)
            if saved.copied_number > self._waited.get(device, 0):  # copies out are in order, too
                stream.wait_event(saved.copied)
                self._waited[device] = saved.copied_number
            return self._copy(stream, buffer.address, host, saved.stored_nbytes, False)
        except RuntimeError as error:
            raise refused_copy(error) from error

    def follow_all(self) -> None:
        """See :class:`CpuCopies`."""
        try:
            for stream in self._out.values():
                self._follow_others(stream)
        except RuntimeError as error:
            raise refused_copy(error) from error

    def wait(self, event: Event | None) -> None:
        """See :class:`CpuCopies`."""
        with copy_errors():
            if event is not None:
                event.synchronize()

    def synchronize(self) -> None:
        """See :class:`CpuCopies`."""
        for stream in (*self._out.values(), *self._back.values()):
            with contextlib.suppress(FastIOError), copy_errors():
                stream.synchronize()

    def _new_stream(self, device: torch.device, out: bool) -> Stream:
        stream = self._accelerator.copy_stream(device, to_host=out)
        self._follow_others(stream)
        (self._out if out else self._back)[device] = stream
        return stream

    def _follow_others(self, stream: Stream) -> None:
        for other in (*self._out.values(), *self._back.values()):
            if other is not stream:
                stream.wait_stream(other)

    def _copy(self, stream: Stream, destination: int, source: int, nbytes: int, to_host: bool) -> Event:
        self._accelerator.copy(stream, destination, source, nbytes, to_host)
        return stream.record_event()
