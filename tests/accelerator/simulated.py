"""A simulated accelerator with two devices, ``simulated:0`` and ``simulated:1``, for tests without a GPU.

`load` compiles and registers it, before torch runs its first backward pass: autograd's threads are made then, one for
each device. A process that has loaded it keeps it, so tests run in processes of their own (see conftest.py).
`configure` sets what the devices are like; `trace` tells what they did.

Compute runs the CPU's kernels on the streams' threads, one at a time on each device. It is asynchronous if a meta
kernel tells the sizes of an operator's results. Otherwise the call waits for the kernel, as it does on a GPU for most
of these (`item`, `nonzero`, masks as indices). Each random operator draws from a generator of its own, whose seed the
device's generator gives when the operator is issued: it is asynchronous, and its numbers are not the CPU's.

No check sees the host's own accesses to pinned memory and to peer windows; late execution shows them by wrong bits.
There are no sparse and no quantized tensors, no graphs and no memory shared between processes.
"""

from __future__ import annotations

import atexit
import bisect
import contextlib
import ctypes
import itertools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

import compile_device
import device_module

_OPS = torch.ops.simulated
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


def load() -> None:
    """Compile the accelerator if that is not done, and register it with torch. Later calls do nothing."""
    global _loaded
    if _loaded:
        return
    torch.ops.load_library(str(compile_device.library()))
    torch.utils.rename_privateuse1_backend("simulated")
    torch._register_device_module("simulated", device_module)
    torch.utils.generate_methods_for_privateuse1_backend(for_packed_sequence=False, for_storage=True)
    torch.empty(0, pin_memory=True)  # torch asks a device only then whether memory is pinned
    atexit.register(_stop, os.getpid())
    _loaded = True


@dataclass(frozen=True)
class Work:
    """A kernel or a copy that a device did. Times in seconds; ``engine``: compute, to_device, to_host or peer."""

    name: str
    engine: str
    device: int
    stream: int
    nbytes: int
    issued: float
    started: float
    ended: float


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
    for number in range(device_module.device_count()) if device is None else [device]:
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


def reset() -> None:
    """Wait for the devices, forget errors and the trace, and set the parameters that a new process has."""
    _OPS.reset()
    for number in range(device_module.device_count()):
        for name, value in _DEFAULTS.items():
            _OPS.configure(number, name, value)
    configure_execution()
    configure_time(False)


def error() -> str:
    """The error that each call raises until `reset`, or an empty text."""
    return _OPS.error()


def unraised_error() -> str:
    """Wait for the devices; the error, if there is one and no call has raised it, or an empty text."""
    return _OPS.unraised_error()


def trace() -> list[Work]:
    """The works that have ended since the last `reset`, at most a million."""
    works = []
    for line in _OPS.trace().splitlines():
        name, engine, device, stream, nbytes, *times = line.split("\t")
        works.append(Work(name, engine, int(device), int(stream), int(nbytes), *map(float, times)))
    return works


def overlapped_bytes(works: list[Work]) -> tuple[float, int]:
    """Bytes that were copied while a kernel of the same device ran (by time, in proportion), and all copied bytes."""
    kernels: dict[int, list[Work]] = {}  # a device runs one at a time
    for work in sorted(works, key=lambda work: work.started):
        if work.engine == "compute":
            kernels.setdefault(work.device, []).append(work)
    ends = {device: [kernel.ended for kernel in of_device] for device, of_device in kernels.items()}
    overlapped, copied = 0.0, 0
    for copy in works:
        if copy.engine == "compute":
            continue
        shared = 0.0
        for kernel in itertools.islice(
            kernels.get(copy.device, ()), bisect.bisect(ends.get(copy.device, ()), copy.started), None
        ):
            if kernel.started >= copy.ended:
                break
            shared += min(copy.ended, kernel.ended) - max(copy.started, kernel.started)
        copied += copy.nbytes
        overlapped += copy.nbytes * min(1.0, shared / max(copy.ended - copy.started, 1e-9))
    return overlapped, copied


def c_library() -> ctypes.CDLL:
    """``simulated_host_register(address, nbytes, flags)`` and ``..._unregister(address)`` with CUDA's error numbers."""
    library = ctypes.CDLL(str(compile_device.library()))
    library.simulated_host_register.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
    library.simulated_host_unregister.argtypes = [ctypes.c_void_p]
    word = ctypes.c_void_p
    library.simulated_copy.argtypes = [ctypes.c_int, ctypes.c_int64, word, word, ctypes.c_uint64, ctypes.c_bool]
    library.simulated_copy.restype = ctypes.c_char_p
    return library


def native_copies() -> int:
    """The address of the devices' copies as a table of C functions, without torch."""
    table = c_library().simulated_native_copies
    table.restype = ctypes.c_void_p
    return table()


def register_host(address: int, nbytes: int) -> None:
    """Let the devices access host memory, as ``cudaHostRegister`` does. Raises if part of it is registered already."""
    _OPS.register_host(address, nbytes)


def unregister_host(address: int) -> None:
    """End a registration. Raises if there is none at ``address``, or if the host has not waited for what uses it."""
    _OPS.unregister_host(address)


def forkable_registrations() -> list[str]:
    """Registrations with pages that a forked child gets copies of: on a GPU's machine, all of them at once, by fork."""
    flagged = []  # address ranges that fork leaves out
    begin = end = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if name == "VmFlags:" and "dc" in rest.split():
            flagged.append(range(begin, end))
        elif "-" in name and not name.endswith(":"):
            begin, end = (int(number, 16) for number in name.split("-"))
    flat = _OPS.registrations()
    return [
        f"registration of {nbytes} bytes at {address:#x}"
        for address, nbytes in zip(flat[::2], flat[1::2], strict=True)
        if sum(len(range(max(address, r.start), min(address + nbytes, r.stop))) for r in flagged) < nbytes
    ]


def host_view(host: torch.Tensor, device: int = 0) -> torch.Tensor:
    """A tensor on the device whose memory is that of ``host``, which is registered or pinned. It keeps ``host``."""
    return _OPS.host_view(host, device)


def bytes_at(address: int, nbytes: int) -> torch.Tensor:
    """Device memory as a uint8 tensor on the device of the address. The tensor that owns it must outlive it."""
    return _OPS.bytes_at(address, nbytes)


def crc32(tensor: torch.Tensor) -> torch.Tensor:
    """The CRC-32 of a contiguous tensor's bytes on a device, computed there: an int64 of shape ()."""
    return _OPS.crc32(tensor)


@contextlib.contextmanager
def peer_window(tensor: torch.Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor on a device, as a disk that reads or writes them over the bus would see them."""
    nbytes = tensor.numel() * tensor.element_size()
    address = open_peer_window(tensor.data_ptr(), nbytes)
    try:
        yield memoryview((ctypes.c_ubyte * nbytes).from_address(address)).cast("B")
    finally:
        close_peer_window(address)


def open_peer_window(address: int, nbytes: int) -> int:
    """The address of a second mapping of device memory, which the host may access. Nothing waits for queued works."""
    return _OPS.open_window(address, nbytes)


def close_peer_window(window: int) -> None:
    """Unmap a peer window."""
    _OPS.close_window(window)


def leaks() -> list[str]:
    """Registrations that nothing ended and peer windows that nothing closed."""
    found = []
    for kind, flat in (("registration", _OPS.registrations()), ("peer window", _OPS.windows())):
        found += [f"{kind} of {nbytes} bytes at {at:#x}" for at, nbytes in zip(flat[::2], flat[1::2], strict=True)]
    return found


def _stop(process: int) -> None:
    """Wait for the devices, so that their threads do nothing while the process ends; list leaks and lost errors."""
    if os.getpid() != process:
        return
    if leaked := leaks():
        print(f"simulated accelerator: leaked at shutdown: {'; '.join(leaked)}", file=sys.stderr)
    if lost := unraised_error():
        print(f"simulated accelerator: no call raised this error: {lost}", file=sys.stderr)
