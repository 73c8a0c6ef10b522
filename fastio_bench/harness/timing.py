"""Times one call in this process: wall and CPU seconds, peak memory, GPU utilisation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from fastio_bench.harness.rounds import Measured, SystemClock, clocked, describe

T = TypeVar("T")


def timed(call: Callable[[], tuple[T, str]], device: str = "cpu", held: int | None = None) -> tuple[T, Measured]:
    """Run the call. Returns its result and its cost.

    ``call`` returns its result and the way of its bytes. With ``held``, the bytes of the result itself, the peak of
    memory beyond them is measured too (only useful in a process that does nothing else).
    """
    peak = None if held is None else Peak()
    with GpuBusy(device) as busy:
        (result, way), took = clocked(call, SystemClock())
    extra = None if peak is None or held is None else peak.beyond(held)
    return result, replace(took, extra_bytes=extra, way=way, gpu_busy=busy.share())


class Peak:
    """The peak of this process's resident memory from now on, above what it holds now."""

    def __init__(self) -> None:
        self._before: int | None
        try:
            with open("/proc/self/clear_refs", "w") as stream:
                stream.write("5")  # resets the high-water mark to the present resident size
            self._before = _status("VmRSS")
        except OSError:  # the kernel cannot reset the mark: no figure is better than a wrong one
            self._before = None

    def beyond(self, nbytes: int) -> int | None:
        """The peak so far, less the memory held before and ``nbytes``, in bytes, at least 0."""
        return None if self._before is None else max(0, _status("VmHWM") - self._before - nbytes)


def utilisation(device: str) -> int:
    """The driver's utilisation of that GPU, in percent, read through nvidia-ml-py."""
    import torch

    return torch.cuda.utilization(device)


def gpu_problem(device: str, read: Callable[[str], int] = utilisation) -> str:
    """Why the utilisation of that GPU cannot be read; empty if it can."""
    try:
        read(device)
    except Exception as error:  # each cause (no nvidia-ml-py, no driver, a MIG slice) has its own exception
        return describe(error)
    return ""


class GpuBusy:
    """Samples the GPU's utilisation every few milliseconds, if it can be read (:func:`gpu_problem` says why not)."""

    _INTERVAL = 0.02  # seconds; the driver averages over longer

    def __init__(self, device: str, read: Callable[[str], int] = utilisation) -> None:
        self._device, self._read = device, read
        self._asks = device.startswith("cuda")
        self._shares: list[float] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> GpuBusy:
        self._asks = self._asks and not gpu_problem(self._device, self._read)  # checked before anything is timed
        if self._asks:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._asks:
            self._thread.join()

    def _watch(self) -> None:
        while not self._shares or not self._done.wait(self._INTERVAL):
            self._shares.append(self._read(self._device) / 100)

    def share(self) -> float | None:
        """The mean utilisation, 0 to 1; None if it was never read."""
        return sum(self._shares) / len(self._shares) if self._shares else None


def _status(key: str) -> int:
    with open("/proc/self/status") as stream:
        for line in stream:
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no line {key}")
