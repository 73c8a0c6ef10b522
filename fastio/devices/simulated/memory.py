"""Memory of the simulated accelerator: registrations, views, peer windows, and what was left of them."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fastio.devices.simulated import build

_OPS: Any = torch.ops.simulated


def c_library() -> ctypes.CDLL:
    """``simulated_host_register(address, nbytes, flags)`` and ``..._unregister(address)`` with CUDA's error numbers."""
    library = ctypes.CDLL(str(build.library()))
    library.simulated_host_register.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
    library.simulated_host_unregister.argtypes = [ctypes.c_void_p]
    library.simulated_copies.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_bool]
    library.simulated_copies.restype = ctypes.c_char_p
    return library


def native_copies() -> int:
    """The address of the devices' copies as a table of C functions, without torch."""
    table = c_library().simulated_native_copies
    table.restype = ctypes.c_void_p
    address: int = table()
    return address


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
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace").splitlines():
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
    view: torch.Tensor = _OPS.host_view(host, device)
    return view


def bytes_at(address: int, nbytes: int) -> torch.Tensor:
    """Device memory as a uint8 tensor on the device of the address. The tensor that owns it must outlive it."""
    there: torch.Tensor = _OPS.bytes_at(address, nbytes)
    return there


def crc32(tensor: torch.Tensor) -> torch.Tensor:
    """The CRC-32 of a contiguous tensor's bytes on a device, computed there: an int64 of shape ()."""
    checksum: torch.Tensor = _OPS.crc32(tensor)
    return checksum


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
    window: int = _OPS.open_window(address, nbytes)
    return window


def close_peer_window(window: int) -> None:
    """Unmap a peer window."""
    _OPS.close_window(window)


def leaks() -> list[str]:
    """Registrations that nothing ended and peer windows that nothing closed."""
    found = []
    for kind, flat in (("registration", _OPS.registrations()), ("peer window", _OPS.windows())):
        found += [f"{kind} of {nbytes} bytes at {at:#x}" for at, nbytes in zip(flat[::2], flat[1::2], strict=True)]
    return found
