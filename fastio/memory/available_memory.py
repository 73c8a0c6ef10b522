"""How much host memory this process can still allocate: of the machine, its cgroups and its resource limits."""

from __future__ import annotations

import os
import resource

# Mappings have parts that are never touched, such as the stacks of threads: of what a limit leaves, so much counts.
_ADDRESS_SPACE, _DATA = 1 / 2, 3 / 4
_CGROUPS, _PROC = "/sys/fs/cgroup", "/proc"


def available_memory(cgroups: str = _CGROUPS, proc: str = _PROC) -> int | None:
    """Return the bytes of host memory that this process can still allocate; None where the system does not tell.

    It is the least of the machine's available memory, of what the limits of the process's cgroups (version 1 or 2)
    leave, of three quarters of what RLIMIT_DATA leaves, and of half of what RLIMIT_AS leaves.

    Args:
        cgroups: the folder that cgroups are mounted in.
        proc: the folder of the kernel's files about processes.
    """
    rooms = _left_by_cgroups(cgroups, proc)
    available = _field(f"{proc}/meminfo", "MemAvailable:")
    if available is not None:
        rooms.append(available << 10)
    limits = ((resource.RLIMIT_AS, "VmSize:", _ADDRESS_SPACE), (resource.RLIMIT_DATA, "VmData:", _DATA))
    for kind, name, share in limits:
        limit, taken = resource.getrlimit(kind)[0], memory_of_process(name, proc)
        if limit != resource.RLIM_INFINITY and taken is not None:
            rooms.append(int((limit - taken) * share))
    return max(0, min(rooms)) if rooms else None


def memory_of_process(name: str, proc: str = _PROC) -> int | None:
    """Return a size in bytes of ``/proc/self/status``, such as "VmRSS:"; None if it is not there."""
    found = _field(f"{proc}/self/status", name)
    return None if found is None else found << 10


def _left_by_cgroups(root: str, proc: str) -> list[int]:
    """Return what the limits of the process's cgroups and of their ancestors leave. Cached files count as free."""
    rooms: list[int] = []
    for line in _text(f"{proc}/self/cgroup").splitlines():
        _, _, names_and_path = line.partition(":")
        names, _, path = names_and_path.partition(":")
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            if not names:
                for base in (root, os.path.join(root, "unified")):
                    rooms += _left(os.path.join(base, *parts[:depth]), "memory.max", "memory.current", "inactive_file")
            elif "memory" in names.split(","):
                below = os.path.join(root, "memory", *parts[:depth])
                rooms += _left(below, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    return rooms


def _left(folder: str, limit_name: str, usage_name: str, cached_name: str) -> list[int]:
    limit, usage = (_text(os.path.join(folder, name)).strip() for name in (limit_name, usage_name))
    if not limit.isdecimal() or not usage.isdecimal():
        return []  # no such cgroup, or no limit ("max")
    return [int(limit) - int(usage) + (_field(os.path.join(folder, "memory.stat"), cached_name) or 0)]


def _field(path: str, name: str) -> int | None:
    """Return the number after a name at the beginning of a line; None if there is none."""
    for line in _text(path).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name:
            return int(words[1])
    return None


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:  # not on this system, or not for this process
        return ""
