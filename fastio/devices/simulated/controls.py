"""Loads the simulated accelerator, and sets what its devices are like and when they work."""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any, Literal

import torch
from torch.utils import backend_registration

from fastio.devices.simulated import build, memory, torch_module

_OPS: Any = torch.ops.simulated
_LATENESS = {"never": 0, "random": 1, "always": 2}
_DEFAULTS: dict[str, float] = {
    "to_device_bandwidth": 0.0,
    "to_host_bandwidth": 0.0,
    "peer_bandwidth": 0.0,
    "host_access_bandwidth": 0.0,
    "latency": 0.0,
    "compute_bandwidth": 0.0,
    "memory_limit": float(16 << 30),
}

_loaded = False
_workspaces = 0.0


def load() -> None:
    """Compile the accelerator if that is not done, and register it with torch. Later calls do nothing.

    It must come before this process's first backward pass. Raises ToolUnavailableError if it cannot be built.
    """
    global _loaded
    if _loaded:
        return
    torch.ops.load_library(str(build.library()))
    backend_registration.rename_privateuse1_backend("simulated")
    torch._register_device_module("simulated", torch_module)
    backend_registration.generate_methods_for_privateuse1_backend(for_packed_sequence=False, for_storage=True)
    torch.empty(0, pin_memory=True)  # torch asks a device only then whether memory is pinned
    atexit.register(_stop, os.getpid())
    _loaded = True


def configure(
    device: int | None = None,
    *,
    copy_bandwidth: float | None = None,
    to_device_bandwidth: float | None = None,
    to_host_bandwidth: float | None = None,
    peer_bandwidth: float | None = None,
    host_access_bandwidth: float | None = None,
    latency: float | None = None,
    compute_bandwidth: float | None = None,
    memory_limit: int | None = None,
) -> None:
    """Set a device's parameters, or those of all devices: bandwidths in bytes per second (0: memcpy's), else seconds.

    ``copy_bandwidth`` is that of copies to the device and of copies to the host; each way has an engine of its own.
    ``host_access_bandwidth`` is that of kernels that read or write host memory in place (`host_view`).
    A kernel takes as long as on the CPU, and no less than the bytes that it reads and writes take at
    ``compute_bandwidth``. More than ``memory_limit`` bytes raise `torch.OutOfMemoryError`.
    """
    given = {
        "to_device_bandwidth": copy_bandwidth if to_device_bandwidth is None else to_device_bandwidth,
        "to_host_bandwidth": copy_bandwidth if to_host_bandwidth is None else to_host_bandwidth,
        "peer_bandwidth": peer_bandwidth,
        "host_access_bandwidth": host_access_bandwidth,
        "latency": latency,
        "compute_bandwidth": compute_bandwidth,
        "memory_limit": memory_limit,
    }
    for number in range(torch_module.device_count()) if device is None else [device]:
        for name, value in given.items():
            if value is not None:
                _OPS.configure(number, name, float(value))


def configure_execution(
    late: Literal["never", "random", "always"] = "random",
    *,
    late_seed: int = 0,
    late_seconds: float = 0.001,
    check_order: bool = True,
    poison: bool = True,
) -> None:
    """Set when works start: at once; one in eight up to ``late_seconds`` late; or when the host waits for them or asks.

    ``check_order``: an access that is not ordered after another stream's is an error of the call that issues it.
    ``poison``: device memory is overwritten when it is allocated (0xFF: NaN) and when it is freed (0xFB).
    """
    _OPS.configure_order(_LATENESS[late], late_seed, late_seconds, check_order, poison)


def configure_time(modelled: bool, *, call_seconds: float = 10e-6) -> None:
    """Set whether the times of works and events are measured, or modelled: then the machine's speed has no effect.

    In the modelled time, which continues the measured one, a kernel takes its bytes at ``compute_bandwidth``, a copy
    its bytes at its bandwidth. The host needs ``call_seconds`` to issue a kernel or a copy, or to ask whether one has
    ended, and no time for all else. Where two streams compete for an engine, the order is that of the real threads.
    """
    _OPS.configure_time(modelled, call_seconds)


def configure_convolutions(workspaces: float) -> None:
    """Set the workspace of the fastest algorithm for convolutions, over the bytes of a convolution's input.

    Only what chooses algorithms (policy "vdnn-dyn" of :class:`fastio.Offload`) allocates it; the kernels are the same.
    """
    global _workspaces
    _workspaces = workspaces


def workspaces() -> float:
    """What :func:`configure_convolutions` set; 0 in a new process."""
    return _workspaces


def reset() -> None:
    """Wait for the devices, forget errors and the trace, and set the parameters that a new process has."""
    _OPS.reset()
    for number in range(torch_module.device_count()):
        for name, value in _DEFAULTS.items():
            _OPS.configure(number, name, value)
    configure_execution()
    configure_time(False)
    configure_convolutions(0.0)


def error() -> str:
    """The error that each call raises until `reset`, or an empty text."""
    return str(_OPS.error())


def unraised_error() -> str:
    """Wait for the devices; the error, if there is one and no call has raised it, or an empty text."""
    return str(_OPS.unraised_error())


def _stop(process: int) -> None:
    """Wait for the devices, so that their threads do nothing while the process ends; list leaks and lost errors."""
    if os.getpid() != process:
        return
    if leaked := memory.leaks():
        sys.stderr.write(f"simulated accelerator: leaked at shutdown: {'; '.join(leaked)}\n")
    if lost := unraised_error():
        sys.stderr.write(f"simulated accelerator: no call raised this error: {lost}\n")
