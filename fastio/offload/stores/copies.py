"""Copies between tensors and the memory of a slab, by address: at once from the CPU, else on side streams of a device.

Order on a GPU. A copy out follows the stream of the operator that computed the bytes. A copy back follows an event that
was recorded right after torch allocated its target: torch reuses memory that earlier kernels may still use. The current
stream is looked up each time, because autograd runs backward on its own threads, under the streams of the forward pass.

Memory of the slab is reused once its copy has ended, or by copies that follow it. Streams that use the bytes earlier
follow the copy's event. No ``record_stream`` here: the caller keeps both memories until the copy has ended, or is
behind it in its stream. With it, torch would keep what left until the host has seen the copy end, for which the host
does not wait: memory would grow by all that the host is ahead. What the program itself frees meanwhile is not copied:
see ``Trace.resized``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import torch

from fastio._native import streaming_copy
from fastio.devices import Accelerator, Copy, Event, Mark, Stream, copy_errors

_REFUSED = copy_errors()


class TimedCopy(NamedTuple):
    """Copies out of a device, between two events that know their times."""

    nbytes: int
    began: Event
    ended: Event

    def bandwidth(self) -> float | None:
        """Return their bytes per second; None while they have not ended."""
        with _REFUSED:
            if not self.ended.query():
                return None
            milliseconds: float = self.began.elapsed_time(self.ended)
            return self.nbytes * 1000 / max(milliseconds, 1e-6)


class CpuCopies:
    """Copies that have ended when the call returns; the GIL is released meanwhile.

    Raises RefusedError if a copy is refused, or has failed. ``timed``: the latest copies whose time was taken.
    """

    streams: Sequence[Stream] = ()
    timed: TimedCopy | None = None

    def out(
        self, copies: Sequence[Copy], computed_by: Stream | None, computed: Event | None = None, timed: bool = False
    ) -> Mark | None:
        """Begin to copy bytes to the slab, of tensors between which nothing was computed.

        They follow all that is queued on ``computed_by``, or only the event ``computed``. ``timed``: take their time,
        where the host does not see their end. Returns the mark that follows them; None if they have ended.
        """
        for host, address, nbytes in copies:
            streaming_copy(host, address, nbytes)
        return None

    def back_in_batch(self, copies: Sequence[Copy], last_out: Mark | None, home: Stream) -> Mark | None:
        """Begin to copy bytes of the slab to memory that was allocated on the stream ``home``, with no compute since.

        They follow the copy out ``last_out``. Returns as ``out`` does.
        """
        for host, address, nbytes in copies:
            streaming_copy(address, host, nbytes)
        return None

    def follow_streams(self, streams: Sequence[Stream]) -> None:
        """Let the copies out to come follow all that is queued on these streams."""

    def wait(self, event: Event | None) -> None:
        """Wait for a copy. Raises its error."""

    def synchronize(self) -> None:
        """Wait for all copies, whose errors do not matter."""


class DeviceCopies(CpuCopies):
    """Copies on the two streams of a device, one for each direction, that all copies of the device share.

    ``within``: the slab is memory of the device, too.
    """

    def __init__(self, accelerator: Accelerator, device: torch.device, within: bool = False) -> None:
        self._accelerator = accelerator
        self._device = device
        self._within = within
        self.streams = self._out, self._back = [accelerator.copy_stream(device, to_host) for to_host in (True, False)]
        self._number = 0  # of the latest mark of copies out
        self._followed = 0  # that of the latest one that the copies back follow

    def fence(self, home: Stream) -> Event:
        """Return the event that a copy back follows. Call it right after its target was allocated on this stream."""
        with _REFUSED:
            return home.record_event()

    def back(self, host: int, address: int, nbytes: int, fence: Event | None) -> Event:
        """Begin to copy bytes of the slab to ``address``, behind ``fence``. Return the event that follows the copy."""
        with _REFUSED:
            self._back.wait_event(fence)
            self._copy(self._back, [(host, address, nbytes)], False)
            return self._back.record_event()

    def out(
        self, copies: Sequence[Copy], computed_by: Stream | None, computed: Event | None = None, timed: bool = False
    ) -> Mark:
        with _REFUSED:
            if computed is None:
                self._out.wait_stream(computed_by)
            else:
                self._out.wait_event(computed)
            began = self._timed_event() if timed else None
            self._copy(self._out, copies, True)
            if began is not None:
                self.timed = TimedCopy(sum(nbytes for _, _, nbytes in copies), began, self._timed_event())
            self._number += 1
            mark = Mark(self._out, self._number)
            mark.set()
            return mark

    def back_in_batch(self, copies: Sequence[Copy], last_out: Mark | None, home: Stream) -> Mark:
        """See :class:`CpuCopies`. Copies out are in order, so it waits only for one that is later than the last."""
        with _REFUSED:
            if last_out is not None and last_out.number > self._followed:
                last_out.precede(self._back)
                self._followed = last_out.number
            self._back.wait_stream(home)
            self._copy(self._back, copies, False)
            mark = Mark(self._back)
            mark.set()
            return mark

    def follow_streams(self, streams: Sequence[Stream]) -> None:
        with _REFUSED:
            for stream in streams:
                if stream is not self._out:
                    self._out.wait_stream(stream)

    def is_done(self, event: Event | None) -> bool:
        """Return whether a copy has ended. Raises its error."""
        with _REFUSED:
            return event is None or bool(event.query())

    def wait(self, event: Event | None) -> None:
        with _REFUSED:
            if event is not None:
                event.synchronize()

    def synchronize(self) -> None:
        for stream in self.streams:
            with contextlib.suppress(RuntimeError):
                stream.synchronize()

    def _timed_event(self) -> Event:
        """Return an event that follows the copies out."""
        with self._accelerator.under(self._out):
            return self._accelerator.timed_event(self._device)

    def _copy(self, stream: Stream, copies: Sequence[Copy], to_host: bool) -> None:
        accelerator = self._accelerator
        if not self._within:
            accelerator.copy(stream, copies, to_host)
            return
        with accelerator.under(stream):
            for slab, address, nbytes in copies:
                if nbytes:
                    ends = accelerator.bytes_at(slab, nbytes), accelerator.bytes_at(address, nbytes)
                    into, out_of = ends if to_host else reversed(ends)
                    into.copy_(out_of, non_blocking=True)
