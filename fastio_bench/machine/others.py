"""What other processes took of the processors while something was measured."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")  # of /proc/stat, per second
_IDLE = (3, 4)  # columns of a processor's line: idle, and waiting for a disk
_COLUMNS = 8  # the later ones, of guests, are counted in the first already
_BUSY = 0.25  # of the processors: above it, figures are those of a busy machine


class Others:
    """Counts, from when it is made, the processors that others keep busy: processes, the kernel, virtual machines."""

    def __init__(self) -> None:
        self._processors = os.sched_getaffinity(0)
        self._wall, self._busy, self._own = time.monotonic(), self._seconds(), _own()

    def remark(self) -> list[str]:
        """What was found, and what it means, in at most one text; none on an idle machine."""
        wall, busy = time.monotonic() - self._wall, self._seconds() - self._busy
        return remark((busy - _own() + self._own) / wall, len(self._processors)) if wall > 0 else []

    def _seconds(self) -> float:
        """Seconds that this process's processors were busy since the start of the machine; 0 where it does not say."""
        try:
            return busy_seconds(Path("/proc/stat").read_text(), self._processors)
        except OSError:
            return 0.0


def busy_seconds(stat: str, processors: set[int]) -> float:
    """Seconds that these processors were busy, by the text of ``/proc/stat``."""
    ticks = 0
    for line in stat.splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in processors:
            ticks += sum(int(one) for place, one in enumerate(columns[:_COLUMNS]) if place not in _IDLE)
    return ticks / _TICKS


def remark(busy: float, processors: int) -> list[str]:
    """What it means that others kept so many of the processors busy: at most one text."""
    if busy < _BUSY * processors:
        return []
    return [
        f"a busy machine: others kept {min(busy, processors):.1f} of {processors} processors busy meanwhile, so the "
        "times are longer than on an idle one and differ from run to run; ratios to torch, of the same rounds, suffer "
        "less, but are not those of an idle machine either: run it again when nothing else runs"
    ]


def _own() -> float:
    usages = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
