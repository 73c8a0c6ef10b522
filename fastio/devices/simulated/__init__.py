"""A simulated accelerator with two devices, ``simulated:0`` and ``simulated:1``: for tests and the benchmarks, and for
trying code without a GPU.

:func:`use` compiles it for the torch that is installed (a C++20 compiler, about a minute, once) and lets torch and
fastio use it, before torch runs its first backward pass: autograd's threads are made then, one for each device. A
process that has loaded it keeps it. :func:`configure` sets what the devices are like; :func:`trace` tells what they
did. ``import fastio`` imports nothing of it.

Compute runs the CPU's kernels on the streams' threads, one at a time on each device. It is asynchronous if a meta
kernel tells the sizes of an operator's results. Otherwise the call waits for the kernel, as it does on a GPU for most
of these (`item`, `nonzero`, masks as indices). Each random operator draws from a generator of its own, whose seed the
device's generator gives when the operator is issued: it is asynchronous, and its numbers are not the CPU's.

No check sees the host's own accesses to pinned memory and to peer windows; late execution shows them by wrong bits.
There are no sparse and no quantized tensors, no graphs and no memory shared between processes.
"""

from fastio.devices.simulated.accelerator import SimulatedAccelerator, use
from fastio.devices.simulated.build import why_not_buildable
from fastio.devices.simulated.controls import (
    configure,
    configure_convolutions,
    configure_execution,
    configure_time,
    error,
    load,
    reset,
    unraised_error,
)
from fastio.devices.simulated.memory import (
    bytes_at,
    c_library,
    close_peer_window,
    crc32,
    forkable_registrations,
    host_view,
    leaks,
    native_copies,
    open_peer_window,
    peer_window,
    register_host,
    unregister_host,
)
from fastio.devices.simulated.works import Work, host_waits, overlapped_bytes, trace

__all__ = [
    "SimulatedAccelerator",
    "Work",
    "bytes_at",
    "c_library",
    "close_peer_window",
    "configure",
    "configure_convolutions",
    "configure_execution",
    "configure_time",
    "crc32",
    "error",
    "forkable_registrations",
    "host_view",
    "host_waits",
    "leaks",
    "load",
    "native_copies",
    "open_peer_window",
    "overlapped_bytes",
    "peer_window",
    "register_host",
    "reset",
    "trace",
    "unraised_error",
    "unregister_host",
    "use",
    "why_not_buildable",
]
