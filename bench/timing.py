"""One call, timed where it happens: wall and CPU seconds, the peak of memory, how busy the GPU was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from fastio.bench.rounds import Measured, SystemClock

T = TypeVar("T")


def timed(call: Callable[[], tuple[T, str]], device: str = "cpu", held: int | None = None) -> tuple[T, Measured]:
    """What the call returned, and what it took.

    ``call`` also returns the way its bytes took. With ``held``, the bytes that the result itself occupies, the peak of
    memory beyond them is measured too (sensible only in a process that does nothing else).
    """
    clock, peak = SystemClock(), None if held is None else Peak()
    with GpuBusy(device) as busy:
        cpu, wall = clock.cpu(), clock.wall()
        result, way = call()
        wall, cpu = clock.wall() - wall, clock.cpu() - cpu
    extra = None if peak is None or held is None else peak.beyond(held)
    return result, Measured(wall, cpu, extra, way, busy.share())


class Peak:
    """The peak of this process's resident memory from now on, above what it holds now."""

    def __init__(self) -> None:
        self._before: int | None
        try:
            with open("/proc/self/clear_refs", "w") as stream:
                stream.write("5")  # sets the high-water mark back to what is resident now
            self._before = _status("VmRSS")
        except OSError:  # a kernel that cannot reset the mark: no figure rather than a wrong one
            self._before = None

    def beyond(self, nbytes: int) -> int | None:
        """The peak so far less what was there before and ``nbytes``, in bytes and not below 0."""
        return None if self._before is None else max(0, _status("VmHWM") - self._before - nbytes)


class GpuBusy:
    """Asks the driver every few milliseconds how busy the GPU is; nothing at all when the device is no GPU."""

    _INTERVAL = 0.02  # seconds; the driver's own figure is an average over longer

    def __init__(self, device: str, read: Callable[[], int] | None = None) -> None:
        self._read = read or (_utilisation if device.startswith("cuda") else None)
        self._shares: list[float] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> GpuBusy:
        if self._read is not None:
            self._read()  # an import that is missing shows here, before anything is timed
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._read is not None:
            self._thread.join()

    def _watch(self) -> None:
        while self._read is not None:
            self._shares.append(self._read() / 100)
            if self._done.wait(self._INTERVAL):
                return

    def share(self) -> float | None:
        """The mean of what the driver said, 0 to 1; None when nobody was asked."""
        return sum(self._shares) / len(self._shares) if self._shares else None


def _utilisation() -> int:
    import torch

    return torch.cuda.utilization()


def _status(key: str) -> int:
    with open("/proc/self/status") as stream:
        for line in stream:
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no line {key}")
