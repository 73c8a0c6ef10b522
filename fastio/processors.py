"""How many processors this process may use: those of its affinity, within the CPU limit of its cgroups."""

from __future__ import annotations

import functools
import math
import os

_CGROUPS, _OWN = "/sys/fs/cgroup", "/proc/self/cgroup"


def count() -> int:
    """The number of processors that this process may use at once, at least 1; a part of one counts as one.

    A program may change its affinity at any time, so it is asked for each time. The limit of the cgroups is read once.
    """
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), cgroup_limit())))


@functools.cache
def cgroup_limit(root: str = _CGROUPS, own: str = _OWN) -> float:
    """The processors that the cgroups of this process allow it, infinite if they limit nothing.

    Args:
        root: the folder that cgroups are mounted in: version 2 there or in ``unified``, version 1 in ``cpu``.
        own: the file that names the process's own cgroups. A container may see another path there than it has below
            ``root``: only its ancestors that exist count.
    """
    limit = math.inf
    for line in _text(own).splitlines():
        _, _, names_and_path = line.partition(":")
        names, _, path = names_and_path.partition(":")
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            below = parts[:depth]
            if not names:
                for base in (root, os.path.join(root, "unified")):
                    limit = min(limit, _share(_text(os.path.join(base, *below, "cpu.max"))))
            elif "cpu" in names.split(","):
                for base in (os.path.join(root, "cpu"), os.path.join(root, names)):
                    files = (os.path.join(base, *below, f"cpu.cfs_{value}_us") for value in ("quota", "period"))
                    limit = min(limit, _share(" ".join(map(_text, files))))
    return limit


def _share(text: str) -> float:
    """The processors that a quota and a period, in microseconds, stand for; infinite for ``max``, -1 and no numbers."""
    numbers = text.split()
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers) or int(numbers[1]) == 0:
        return math.inf
    return int(numbers[0]) / int(numbers[1])


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:  # no such cgroup here, or not for this process: it limits nothing
        return ""
