"""When an accelerator computed what a pass saves and uses, by events in its streams. The host only launches that work.

The pass must not wait for each transfer: an accelerator that waits for launches would seem to compute for longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

from fastio import devices
from fastio.offload.autograd.trace import Trace


class Clock:
    """Tells seconds by timed events of the current stream, where moves are compared with what an accelerator computes.

    An accelerator whose time is modelled has no other clock; without one it is the host's.
    """

    def __init__(self) -> None:
        self._origins: dict[torch.device, devices.Event] = {}

    def now(self, accelerator: devices.Accelerator | None, device: torch.device) -> float:
        """Return the seconds at the end of what is queued on the current stream, for which the host waits."""
        if accelerator is None:
            return time.perf_counter()
        event = accelerator.timed_event(device)
        event.synchronize()
        origin: devices.Event = self._origins.setdefault(device, event)
        return float(origin.elapsed_time(event)) / 1e3


class ComputeTimes:
    """The compute times of one forward pass and of its backward, without the pauses in which the streams had no work.

    Events of several devices are compared by the host's clock, which is read when a device is idle at its first event.
    It also times what the host computes.
    """

    def __init__(self) -> None:
        self._origins: dict[torch.device, tuple[devices.Event, float]] = {}
        self._marks: list[Callable[[], float]] = []  # each waits for its event, and returns the host's time of it
        self._paused_from: dict[int, int] = {}  # marks: the end of a pause, and its begin
        self._pause = 0
        self._ready: list[int] = []
        self._used: dict[int, int] = {}
        self._forward_ended = 0

    def ready(self, device: torch.device) -> None:
        """The next activation of the forward pass is ready."""
        self._ready.append(self._mark(device))

    def pause(self, device: torch.device) -> None:
        """The host may wait from here, and queue work that is not the program's."""
        self._pause = self._mark(device)

    def resume(self, device: torch.device) -> None:
        """The host goes on with the program."""
        self._paused_from[self._mark(device)] = self._pause

    def end_forward(self, device: torch.device) -> None:
        """The forward pass ends."""
        self._forward_ended = self._mark(device)

    def used(self, ordinal: int, device: torch.device) -> None:
        """Backward needs an activation. A pause begins."""
        self.pause(device)
        self._used.setdefault(ordinal, self._pause)

    def set_forward(self, trace: Trace) -> None:
        """Set the times of the forward pass, once the devices have done it."""
        seconds = self._seconds()
        for ordinal, mark in enumerate(self._ready):
            ready_s = max(0.0, seconds[mark])
            trace.saved[ordinal] = trace.saved[ordinal]._replace(ready_s=ready_s)
        trace.forward_s = max(0.0, seconds[self._forward_ended])

    def set_backward(self, trace: Trace) -> None:
        """Set the times of first uses in backward, once the devices have done it."""
        seconds = self._seconds()
        ended_s = seconds[self._forward_ended]
        trace.used_s = {ordinal: max(0.0, seconds[mark] - ended_s) for ordinal, mark in self._used.items()}

    def _mark(self, device: torch.device) -> int:
        accelerator = devices.find(device)
        if accelerator is None:
            now = time.perf_counter()
            self._marks.append(lambda: now)
        else:
            if device not in self._origins:
                accelerator.synchronize(device)
                self._origins[device] = accelerator.timed_event(device), time.perf_counter()
            self._marks.append(partial(_host_seconds, *self._origins[device], accelerator.timed_event(device)))
        return len(self._marks) - 1

    def _seconds(self) -> list[float]:
        """Wait for all marks; return the seconds of compute before each."""
        at = [mark() for mark in self._marks]
        paused_s = 0.0
        seconds: list[float] = []
        for mark, now in enumerate(at):
            if mark in self._paused_from:
                paused_s += now - at[self._paused_from[mark]]
            seconds.append(now - at[0] - paused_s)
        return seconds


def _host_seconds(origin: devices.Event, origin_s: float, event: devices.Event) -> float:
    event.synchronize()
    return origin_s + float(origin.elapsed_time(event)) / 1e3
