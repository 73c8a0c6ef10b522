"""Checks of this machine that concern saves and loads: direct I/O, io_uring, GPUDirect Storage, tools."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from fastio.errors import FastIOError
from fastio.files import direct_io as alignment
from fastio.inspect.tools import tools

_IO_URING_SETUP = 425  # the same number on every architecture but alpha
_CACHED = "saves and loads go through the page cache"


def direct_io(folder: Path) -> str:
    """Whether files here support direct I/O, and the alignment that they need.

    Writes a file ``direct`` into the folder, which is empty, and removes it.
    """
    probe = folder / "direct"
    probe.write_bytes(bytes(4096))
    try:
        fd = os.open(probe, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        return f"O_DIRECT is refused ({error.strerror}); {_CACHED}"
    finally:
        probe.unlink()
    try:
        told = alignment.kernel_alignment(str(folder), fd)
        taken = alignment.alignment(str(folder), fd)
    except FastIOError as error:
        return f"{error}; {_CACHED}"
    finally:
        os.close(fd)
    if told is None:
        return f"yes; the kernel does not tell the alignment, fastio's is {taken} bytes"
    return f"yes; memory aligned to {told[0]} and offsets to {told[1]} bytes, fastio's are to {taken}"


def io_uring() -> str:
    """Whether io_uring can be used here, else why not. Makes a ring and closes it."""
    parameters = ctypes.create_string_buffer(120)
    fd = ctypes.CDLL(None, use_errno=True).syscall(_IO_URING_SETUP, 1, parameters)
    if fd >= 0:
        os.close(fd)
        return "allowed"
    try:
        switch = Path("/proc/sys/kernel/io_uring_disabled").read_text().strip()
    except OSError:
        switch = ""
    hint = f"kernel.io_uring_disabled = {switch}" if switch not in ("", "0") else "a seccomp filter, as in Docker?"
    return f"io_uring_setup: {os.strerror(ctypes.get_errno())} ({hint})"


def gds() -> str:
    """Whether bytes can go between GPU and disk without touching host memory."""
    status = next(status for status in tools() if status.name == "gds")
    if not status.available:
        return f"no: {status.reason}"
    driver = Path("/proc/driver/nvidia-fs/stats").exists()
    return "yes" if driver else "kvikio is here, the nvidia-fs driver is not: transfers bounce through host memory"


def tool_rows() -> list[tuple[str, bool, str]]:
    """fastio's tools: their operations and devices, or the reason why they are missing and the cure."""
    rows = []
    for status in tools():
        able = f"{', '.join(sorted(status.operations))} on {', '.join(sorted(status.devices))}"
        if not status.files:
            able += ", in volumes on NVMe namespaces"
        missing = f"{status.reason}; {status.cure}" if status.cure else status.reason
        rows.append((status.name, status.available, able if status.available else missing))
    return rows
