"""Runs load processes, one a core, that take a set share of the memory bandwidth. They end with this process."""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from fastio_bench.harness.interrupts import held
from fastio_bench.machine import bandwidth_load

LEAST_NBYTES = 64 << 20
_CACHES = 4  # a buffer is this many times the largest cache, rounded to whole chunks
_START = 60.0  # seconds within which a load process must be ready
_SETTLE = 0.05  # seconds until a new pace is reached
_WINDOW, _WINDOWS = 0.5, 3  # seconds of a window, and the number of windows, to measure the limit


class BandwidthLoadError(RuntimeError):
    """A load process could not start, or died."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The bytes that all load processes read and wrote, the seconds, and a histogram of the seconds of a chunk."""

    seconds: float
    moved: int
    took: tuple[int, ...]

    @property
    def bandwidth(self) -> float:
        """Bytes/s."""
        return self.moved / self.seconds if self.seconds > 0 else 0.0

    def __sub__(self, earlier: Traffic) -> Traffic:
        """The traffic between two readings."""
        took = tuple(now - before for now, before in zip(self.took, earlier.took, strict=True))
        return Traffic(self.seconds - earlier.seconds, self.moved - earlier.moved, took)


def chunk_seconds(took: Sequence[int], share: float) -> float | None:
    """The quantile ``share`` of a chunk's seconds (0.99: the 99th percentile); None without chunks."""
    wanted, seen = share * sum(took), 0
    for index, count in enumerate(took):
        seen += count
        if count and seen >= wanted:
            return bandwidth_load.SHORTEST * math.pow(2.0, (index + 1) / bandwidth_load.BINS_AN_OCTAVE)
    return None


class BandwidthLoads:
    """A context manager for the load processes. They pause until :meth:`pace` sets a rate.

    Each is bound to one of ``cores``, by default all that this process may use. A load process copies between two
    buffers of ``nbytes`` bytes, by default four times the largest cache, so every byte comes from memory and goes to
    memory.
    """

    def __init__(self, cores: Sequence[int] | None = None, nbytes: int | None = None) -> None:
        self.cores = sorted(os.sched_getaffinity(0)) if cores is None else list(cores)
        wanted = max(LEAST_NBYTES, _CACHES * largest_cache()) if nbytes is None else nbytes
        self.nbytes = -(-wanted // bandwidth_load.CHUNK) * bandwidth_load.CHUNK
        self._children: list[subprocess.Popen[str]] = []
        self._slots: list[bandwidth_load.Slot] = []

    def __enter__(self) -> BandwidthLoads:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all load processes."""
        for child in self._children:
            child.kill()
        for child in self._children:
            child.communicate()
        self._children.clear()

    @property
    def pids(self) -> list[int]:
        """The process numbers of the load processes."""
        return [child.pid for child in self._children]

    def pace(self, bytes_per_s: float) -> None:
        """Set the rate of all load processes together: 0 pauses them, infinity removes the limit."""
        for slot in self._slots:
            slot.target = bytes_per_s / len(self._slots)

    def reading(self) -> Traffic:
        """The traffic until now, with the clock's seconds. Raises BandwidthLoadError if a load process died."""
        self._check()
        took = tuple(map(sum, zip(*(slot.took for slot in self._slots), strict=True)))
        return Traffic(time.perf_counter(), sum(slot.moved for slot in self._slots), took)

    def begin(self) -> Traffic:
        """A reading at the begin of a measurement. The load processes forget their delay from before.

        One that was delayed just before would otherwise take more than its share during the measurement.
        """
        for slot in self._slots:
            slot.begun += 1
        return self.reading()

    def watched(self, seconds: float) -> Traffic:
        """The traffic in ``seconds`` at the present pace, after it has settled."""
        time.sleep(_SETTLE)
        before = self.begin()
        time.sleep(seconds)
        return self.reading() - before

    def limit(self) -> float:
        """The memory's bandwidth in bytes/s: the load processes' median rate, over some windows, without a limit."""
        self.pace(math.inf)
        try:
            return median(self.watched(_WINDOW).bandwidth for _ in range(_WINDOWS))
        finally:
            self.pace(0)

    def _start(self) -> None:
        size = ctypes.sizeof(bandwidth_load.Slot)
        fd = os.memfd_create("bandwidth-loads")
        try:
            os.ftruncate(fd, size * len(self.cores))
            shared = mmap.mmap(fd, 0)
            self._slots = [bandwidth_load.Slot.from_buffer(shared, size * index) for index in range(len(self.cores))]
            for index, core in enumerate(self.cores):
                settings = {"fd": fd, "index": index, "core": core, "nbytes": self.nbytes, "parent": os.getpid()}
                # Isolated mode: the program's folder has modules whose names shadow others.
                command = [sys.executable, "-I", bandwidth_load.__file__, json.dumps(settings)]
                with held():
                    self._children.append(
                        subprocess.Popen(
                            command,
                            pass_fds=(fd,),
                            stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE,
                            text=True,
                            start_new_session=True,  # Ctrl-C reaches only the parent
                        )
                    )
        finally:
            os.close(fd)
        until = time.monotonic() + _START
        while not all(slot.ready for slot in self._slots):
            self._check()
            if time.monotonic() > until:
                raise BandwidthLoadError(f"after {_START:.0f} s not all of {len(self.cores)} load processes were ready")
            time.sleep(_SETTLE)

    def _check(self) -> None:
        for child, core in zip(self._children, self.cores, strict=False):
            if child.poll() is not None:
                said = child.stderr.read().strip().splitlines()[-1:] if child.stderr is not None else []
                reason = said[0] if said else "it said nothing"
                raise BandwidthLoadError(
                    f"the load process on core {core} ended with status {child.returncode}: {reason}"
                )


def largest_cache() -> int:
    """Bytes of the first core's largest cache; 0 if the kernel does not report it."""
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size.removesuffix("K")) * 1024 for size in sizes if size.endswith("K")), default=0)
