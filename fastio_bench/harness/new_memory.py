"""Measures the first touch of memory that was unused for a while, a cost of every load into new memory."""

from __future__ import annotations

import time

from fastio_bench.harness.memory_reserve import Reserve, available_memory
from fastio_bench.machine.host import takes_memory_back

_LEAST, _MOST = 64 << 20, 256 << 20


def told() -> str:
    """How fast unused memory is faulted in, how fast just freed memory is, and the cause of a difference."""
    nbytes = max(_LEAST, min(_MOST, available_memory() // 4))
    first, again = _fault_in(nbytes), _fault_in(nbytes)
    speeds = f"{first / 1e6:,.0f} MB/s at its first touch, {again / 1e6:,.0f} if it was just freed"
    if not takes_memory_back():
        return speeds
    return f"{speeds}; the host of this virtual machine takes free memory back (virtio balloon, free page reporting)"


def _fault_in(nbytes: int) -> float:
    """Fault in memory, in huge pages where the kernel has them. Returns bytes per second."""
    reserve = Reserve(nbytes)
    began = time.perf_counter()
    reserve.hold()
    seconds = time.perf_counter() - began
    reserve.release()
    return nbytes / seconds
