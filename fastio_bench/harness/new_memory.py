"""Memory that nobody had for a while: what its first touch costs, which a load into new memory pays."""

from __future__ import annotations

import time

from fastio_bench.harness.memory_reserve import Reserve, available_memory
from fastio_bench.machine.host import takes_memory_back

_LEAST, _MOST = 64 << 20, 256 << 20


def told() -> str:
    """How fast memory is faulted in that lay free, and the same again at once; and who is behind a difference."""
    nbytes = max(_LEAST, min(_MOST, available_memory() // 4))
    first, again = _fault_in(nbytes), _fault_in(nbytes)
    speeds = f"{first / 1e6:,.0f} MB/s at its first touch, {again / 1e6:,.0f} if it was just freed"
    if not takes_memory_back():
        return speeds
    return f"{speeds}; the host of this virtual machine takes free memory back (virtio balloon, free page reporting)"


def _fault_in(nbytes: int) -> float:
    """Bytes per second, in huge pages where the kernel has them."""
    reserve = Reserve(nbytes)
    began = time.perf_counter()
    reserve.hold()
    seconds = time.perf_counter() - began
    reserve.release()
    return nbytes / seconds
