"""Child processes that take a set share of the memory bandwidth: one a core, all gone when this process is."""

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
_CACHES = 4  # a buffer is so many times the largest cache, and a whole number of chunks
_START = 60.0  # seconds within which a hog must be ready
_SETTLE = 0.05  # seconds from setting a pace until it is kept
_WINDOW, _WINDOWS = 0.5, 3  # seconds, and how many, of measuring the limit


class HogError(RuntimeError):
    """A hog could not start, or died."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What all hogs moved (bytes read and written) in so many seconds, and a histogram of how long chunks took."""

    seconds: float
    moved: int
    took: tuple[int, ...]

    @property
    def bandwidth(self) -> float:
        """Bytes/s."""
        return self.moved / self.seconds if self.seconds > 0 else 0.0

    def __sub__(self, earlier: Traffic) -> Traffic:
        """What was moved between two readings."""
        took = tuple(now - before for now, before in zip(self.took, earlier.took, strict=True))
        return Traffic(self.seconds - earlier.seconds, self.moved - earlier.moved, took)


def chunk_seconds(took: Sequence[int], share: float) -> float | None:
    """How long a chunk took at most, in that share of all cases (0.99: the 99th percentile); None without any."""
    wanted, seen = share * sum(took), 0
    for index, count in enumerate(took):
        seen += count
        if count and seen >= wanted:
            return bandwidth_load.SHORTEST * math.pow(2.0, (index + 1) / bandwidth_load.BINS_AN_OCTAVE)
    return None


class BandwidthLoads:
    """A context: within it the hogs live, at rest until they are given a pace.

    Each is bound to one of the cores that this process may use, so that all cores carry the same load in every round;
    what is measured is bound to none. A hog copies between two buffers of ``nbytes`` bytes, by default four times the
    largest cache, so that every byte comes from memory and goes there.
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
        """Kill them all."""
        for child in self._children:
            child.kill()
        for child in self._children:
            child.communicate()
        self._children.clear()

    @property
    def pids(self) -> list[int]:
        """The hogs' process numbers."""
        return [child.pid for child in self._children]

    def pace(self, bytes_per_s: float) -> None:
        """Let the hogs together move so many bytes a second: 0 for none, infinity for as many as they can."""
        for slot in self._slots:
            slot.target = bytes_per_s / len(self._slots)

    def reading(self) -> Traffic:
        """What was moved until now, seconds being the clock's. HogError if a hog died."""
        self._check()
        took = tuple(map(sum, zip(*(slot.took for slot in self._slots), strict=True)))
        return Traffic(time.perf_counter(), sum(slot.moved for slot in self._slots), took)

    def begin(self) -> Traffic:
        """A reading at which something begins to be measured: the hogs make nothing good of what they lost before.

        A hog that was kept waiting just before would take more than its share in what is measured.
        """
        for slot in self._slots:
            slot.begun += 1
        return self.reading()

    def watched(self, seconds: float) -> Traffic:
        """What the hogs move in so many seconds at their present pace, once they have settled to it."""
        time.sleep(_SETTLE)
        before = self.begin()
        time.sleep(seconds)
        return self.reading() - before

    def limit(self) -> float:
        """The memory's bandwidth in bytes/s: what all hogs move when none is paced, the median of some windows."""
        self.pace(math.inf)
        try:
            return median(self.watched(_WINDOW).bandwidth for _ in range(_WINDOWS))
        finally:
            self.pace(0)

    def _start(self) -> None:
        size = ctypes.sizeof(bandwidth_load.Slot)
        fd = os.memfd_create("hogs")
        try:
            os.ftruncate(fd, size * len(self.cores))
            shared = mmap.mmap(fd, 0)
            self._slots = [bandwidth_load.Slot.from_buffer(shared, size * index) for index in range(len(self.cores))]
            for index, core in enumerate(self.cores):
                settings = {"fd": fd, "index": index, "core": core, "nbytes": self.nbytes, "parent": os.getpid()}
                # Isolated: the folder of the program holds modules with names of others.
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
                            start_new_session=True,  # Ctrl-C is its parent's alone
                        )
                    )
        finally:
            os.close(fd)
        until = time.monotonic() + _START
        while not all(slot.ready for slot in self._slots):
            self._check()
            if time.monotonic() > until:
                raise HogError(f"after {_START:.0f} s not all of {len(self.cores)} hogs were ready")
            time.sleep(_SETTLE)

    def _check(self) -> None:
        for child, core in zip(self._children, self.cores, strict=False):
            if child.poll() is not None:
                said = child.stderr.read().strip().splitlines()[-1:] if child.stderr is not None else []
                reason = said[0] if said else "it said nothing"
                raise HogError(f"the hog on core {core} ended with status {child.returncode}: {reason}")


def largest_cache() -> int:
    """Bytes of the largest cache of the first core; 0 where the kernel does not tell."""
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(size.removesuffix("K")) * 1024 for size in sizes if size.endswith("K")), default=0)
