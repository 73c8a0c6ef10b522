"""Detects whether, and when, the host of this virtual machine takes its free memory back.

A balloon with free page reporting returns memory to the host soon after it is freed. The next use of that memory waits
for the host: it comes at a twentieth of its speed, for the tool that happens to be timed.
"""

from __future__ import annotations

from pathlib import Path

LARGE = 8 << 20  # bytes from which on a call uses several huge pages; the host takes back only huge pages
MOST_AGAIN = 2  # repetitions of a call that was disturbed each time

_FELT = 1.1
_PAUSE = 2.0  # seconds: PAGE_REPORTING_DELAY of mm/page_reporting.c
_BALLOON = Path("/sys/bus/virtio/drivers/virtio_balloon")
_REPORTING = 5  # VIRTIO_BALLOON_F_REPORTING: free pages are reported to the host
_REPORTED_KIB = Path("/sys/module/page_reporting/parameters/reported_kib")


def takes_memory_back(balloon: Path = _BALLOON) -> bool:
    """Whether a virtio balloon reports free pages. ``balloon`` is its driver's folder in sysfs."""
    features = (device / "features" for device in balloon.glob("virtio*"))
    return any(path.is_file() and path.read_text()[_REPORTING : _REPORTING + 1] == "1" for path in features)


def disturbed(nbytes: int, seconds: float, taken: int, usual: float = 0.0) -> bool:
    """Whether to time a call again that moved ``nbytes`` in ``seconds`` while the host took ``taken`` bytes.

    ``usual``: the seconds of the same call when the host took nothing, 0 if unknown. A call that was hardly slower was
    not affected. A call longer than the pause between two passes over the free memory would be disturbed again.
    """
    return taken > 0 and nbytes >= LARGE and _FELT * usual < seconds < _PAUSE


def remark(again: int) -> list[str]:
    """The remark on ``again`` repeated calls; empty if there were none."""
    if not again:
        return []
    return [f"{again:,} large calls were timed again: the host of this virtual machine took memory back meanwhile"]


def taken_back(counter: Path = _REPORTED_KIB) -> int:
    """Bytes that the host took back since this machine started; 0 if the kernel does not count them."""
    try:
        return int(counter.read_text()) * 1024
    except (OSError, ValueError):
        return 0
