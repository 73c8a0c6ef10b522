"""Memory that nobody had for a while: what its first touch costs, which a load into new memory pays."""

from __future__ import annotations

import time
from pathlib import Path

from fastio.bench.reserve import Reserve, available_memory

LEAST, MOST = 64 << 20, 256 << 20

_BALLOON = Path("/sys/bus/virtio/drivers/virtio_balloon")
_REPORTING = 5  # VIRTIO_BALLOON_F_REPORTING: free pages are reported to the host, which takes them


def told() -> str:
    """How fast memory is faulted in that lay free, and the same again at once; and who is behind a difference."""
    nbytes = max(LEAST, min(MOST, available_memory() // 4))
    first, again = _fault_in(nbytes), _fault_in(nbytes)
    speeds = f"{first / 1e6:,.0f} MB/s at its first touch, {again / 1e6:,.0f} if it was just freed"
    if not is_taken_back(_BALLOON):
        return speeds
    return f"{speeds}; the host of this virtual machine takes free memory back (virtio balloon, free page reporting)"


def is_taken_back(balloon: Path) -> bool:
    """Whether a virtio balloon, whose driver's folder in sysfs this is, has agreed to report free pages."""
    features = (device / "features" for device in balloon.glob("virtio*"))
    return any(path.is_file() and path.read_text()[_REPORTING : _REPORTING + 1] == "1" for path in features)


def _fault_in(nbytes: int) -> float:
    """Bytes per second, in huge pages where the kernel has them."""
    reserve = Reserve(nbytes)
    began = time.perf_counter()
    reserve.hold()
    seconds = time.perf_counter() - began
    reserve.release()
    return nbytes / seconds
