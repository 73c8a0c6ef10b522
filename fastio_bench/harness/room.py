"""Leaves out workloads that are too large for this machine's memory or disk, with a remark that names them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from fastio_bench.harness.memory_reserve import available_memory
from fastio_bench.workloads.objects import MIB, Workload, one_tensor

WANT = "for want of memory or disk"
_SMALLER = (16, 4, 1)  # batches, where a command measures at one size


def most(folder: Path, files: int, memories: int = 4) -> int:
    """The most bytes that an object may have, if ``files`` of it lie in the folder at once.

    It needs ``memories`` times its bytes of memory: for itself, for the loaded copy, for as much again populated.
    """
    return min(available_memory() // memories, shutil.disk_usage(folder).free // files)


def remark(cut: Sequence[str]) -> str:
    """The remark on what was left out; empty if nothing was."""
    return f"left out, {WANT}: {', '.join(cut)}" if cut else ""


def fitting(workloads: Sequence[Workload], folder: Path, files: int) -> tuple[list[Workload], str]:
    """The workloads that fit, and the remark on those that were left out."""
    room = most(folder, files)
    cut = [own for own in workloads if own.nbytes > room]
    named = [own.label if own.kind == "tensor" else f"{own.label} ({own.nbytes / MIB:,.4g} MiB)" for own in cut]
    return [own for own in workloads if own.nbytes <= room], remark(named)


def one_size(batch: int, folder: Path, files: int) -> tuple[Workload, str]:
    """One tensor of that batch, or a smaller one with a remark if it does not fit."""
    asked, room = one_tensor(batch), most(folder, files)
    sizes = [asked, *(one_tensor(smaller) for smaller in _SMALLER if smaller < batch)]
    found = next((own for own in sizes if own.nbytes <= room), sizes[-1])
    return found, "" if found is asked else f"{found.label} instead of {asked.nbytes / MIB:,.10g} MiB, {WANT}"
