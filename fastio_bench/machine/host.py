"""Whether the host of this virtual machine takes its free memory back, and when it did.

A balloon with free page reporting gives the host what lies free for a moment. Whoever wants that memory next waits for
the host: it comes at a twentieth of its speed, for whatever tool is being timed just then.
"""

from __future__ import annotations

from pathlib import Path

LARGE = 8 << 20  # from here on a call takes huge pages in number, and only those are taken back
MOST_AGAIN = 2  # times that a call is timed again, if it was disturbed each time

_FELT = 1.1
_PAUSE = 2.0  # seconds: PAGE_REPORTING_DELAY of mm/page_reporting.c
_BALLOON = Path("/sys/bus/virtio/drivers/virtio_balloon")
_REPORTING = 5  # VIRTIO_BALLOON_F_REPORTING: free pages are reported to the host, which takes them
_REPORTED_KIB = Path("/sys/module/page_reporting/parameters/reported_kib")


def takes_memory_back(balloon: Path = _BALLOON) -> bool:
    """Whether a virtio balloon, whose driver's folder in sysfs this is, has agreed to report free pages."""
    features = (device / "features" for device in balloon.glob("virtio*"))
    return any(path.is_file() and path.read_text()[_REPORTING : _REPORTING + 1] == "1" for path in features)


def disturbed(nbytes: int, seconds: float, taken: int, usual: float = 0.0) -> bool:
    """Whether a call that moved so many bytes in that time is to be timed again, the host having taken so many.

    ``usual``: what the same took when the host took nothing, 0 if that is not known. What is hardly slower was not met
    by it; what takes longer than the pause between two passes over the free memory would be again.
    """
    return taken > 0 and nbytes >= LARGE and _FELT * usual < seconds < _PAUSE


def remark(again: int) -> list[str]:
    """What to say of so many calls that were timed again; nothing where none was."""
    if not again:
        return []
    return [f"{again:,} large calls were timed again: the host of this virtual machine took memory back meanwhile"]


def taken_back(counter: Path = _REPORTED_KIB) -> int:
    """Bytes that the host took back since this machine started; 0 where the kernel does not count them."""
    try:
        return int(counter.read_text()) * 1024
    except (OSError, ValueError):
        return 0
