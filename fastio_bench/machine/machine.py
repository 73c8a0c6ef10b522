"""Describes this machine: processor, memory, kernel, filesystem, versions."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fastio_bench.harness.children import completed

PACKAGES = (
    *("fastio", "torch", "numpy", "safetensors", "nvidia-dali-cuda120"),
    *("kvikio-cu12", "kvikio-cu13", "cupy-cuda12x", "cupy-cuda13x"),
    *("fastsafetensors", "runai-model-streamer", "torchsnapshot", "deepspeed", "tensornvme"),
)


@dataclass(frozen=True, slots=True)
class Filesystem:
    """The filesystem below a folder. ``device`` and ``options`` are as in ``/proc/self/mountinfo``."""

    kind: str
    device: str
    mount_point: str
    options: str
    total_bytes: int
    free_bytes: int


def describe(folder: Path) -> dict[str, Any]:
    """The machine, for a report, without names of hosts or users."""
    fs = filesystem(folder)
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "architecture": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "gpus": gpus(),
        "filesystem": {"kind": fs.kind, "device": fs.device, "options": fs.options, "total_bytes": fs.total_bytes},
        "huge_pages": _text("/sys/kernel/mm/transparent_hugepage/enabled"),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Versions of the compared packages that are installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    if shutil.which("fio"):
        found["fio"] = completed(["fio", "--version"]).stdout.strip().removeprefix("fio-")
    return found


def processor() -> str:
    """The processor's name."""
    for line in _text("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def gpus() -> list[str]:
    """The names of the CUDA devices that torch sees."""
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def filesystem(folder: Path) -> Filesystem:
    """The mounted filesystem that holds the folder."""
    number = os.stat(folder).st_dev
    wanted = f"{os.major(number)}:{os.minor(number)}"
    space = shutil.disk_usage(folder)
    for line in reversed(_text("/proc/self/mountinfo").splitlines()):
        before, _, after = line.partition(" - ")
        fields, (kind, device, *_rest) = before.split(), after.split()
        if fields[2] == wanted:
            return Filesystem(kind, device, fields[4], fields[5], space.total, space.free)
    return Filesystem("unknown", wanted, "", "", space.total, space.free)


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
