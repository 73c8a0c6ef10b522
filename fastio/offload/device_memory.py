"""What else lives on the device of a training: measured, for the budget that fits it. Sizes are bytes."""

from __future__ import annotations

import contextlib

import torch

from fastio import devices
from fastio.memory.available_memory import available_memory, memory_of_process
from fastio.offload.planning.fitting import Fit, Room, fit_device, fit_host

_answered: dict[torch.device, int] = {}  # of a device's errors, the number of the last one that an Offload answered
_RESET_PEAK = "5"  # of resident memory: proc(5), /proc/pid/clear_refs


class DeviceMemory:
    """The memory of the device that the first saved tensor of a pass is on.

    On an accelerator it is what torch's allocator says. On the CPU it is the process's resident memory, and what is
    available to it. Their peaks are reset at the begin of each measured pass.
    """

    def __init__(self) -> None:
        self._device = torch.device("cpu")
        self._accelerator: devices.Accelerator | None = None
        self._errors = 0  # that were seen here
        self._begun = 0  # bytes that were allocated when measuring began

    @property
    def is_accelerated(self) -> bool:
        return self._accelerator is not None

    def follow(self, device: torch.device) -> None:
        """A pass begins, whose first saved tensor is on this device."""
        if device != self._device:
            self._device, self._accelerator = device, devices.find(device)
            self.has_run_out()

    def measure(self) -> None:
        """Begin to measure the peak: everything that is saved moves out from here on, and is waited for."""
        self._begun = self.allocated()
        if self._accelerator is not None:
            self._accelerator.reset_peak_memory(self._device)
            return
        with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="utf-8") as file:
            file.write(_RESET_PEAK)  # where that is not allowed, an earlier peak may make the budget too small

    def peak(self) -> int:
        """Return the most bytes that were allocated since :meth:`measure`."""
        if self._accelerator is not None:
            return self._accelerator.peak_memory(self._device)
        return memory_of_process("VmHWM:") or 0

    def risen(self) -> int:
        """Return by how much the peak exceeds what was allocated at :meth:`measure`."""
        return max(0, self.peak() - self._begun)

    def allocated(self) -> int:
        """Return the bytes that are allocated now."""
        if self._accelerator is not None:
            return self._accelerator.memory_allocated(self._device)
        return memory_of_process("VmRSS:") or 0

    def fit(self, room: Room, working_set: int) -> Fit | None:
        """Return the budget that fits the device; None if the system does not tell its memory."""
        if self._accelerator is not None:
            limit = self._accelerator.memory_limit(self._device)
            return None if limit is None else fit_device(str(self._device), limit, room.peak, room.grown, working_set)
        available = available_memory()
        if available is None:
            return None
        # An optimizer makes its state in its first step: it is no part of the peak of backward, and is in the base.
        return fit_host(available, max(room.peak - room.base, room.backward), working_set)

    def has_run_out(self) -> bool:
        """Return whether torch raised OutOfMemoryError for the device since the last call, and none was answered."""
        before = max(self._errors, _answered.get(self._device, 0))
        self._errors = 0 if self._accelerator is None else self._accelerator.out_of_memory_errors(self._device)
        return self._errors > before

    def answer(self) -> None:
        """An error was answered, by this Offload: no other one has to."""
        self.has_run_out()
        _answered[self._device] = self._errors
