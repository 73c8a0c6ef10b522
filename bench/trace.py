"""Timings of every tool at mixed sizes in a file, which ``fastio-bench tools --record`` writes and replays read."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fastio import plan
from fastio.bench import machine
from fastio.dicts import Context

SHIPPED = Path(__file__).with_name("recorded.csv")
DURABLE, CACHED, COLD, WARM = "durable save", "save", "cold load", "warm load"
WORKS = (DURABLE, CACHED, COLD, WARM)

_CPU = frozenset({"cpu"})


class Row(NamedTuple):
    """One size at one work: the seconds that each tool took, all measured within one moment of each other.

    ``work`` is a format and one of :data:`WORKS`, as ``"pt cold load"``.
    """

    work: str
    nbytes: int
    seconds: Mapping[str, float]


def context(work: str, nbytes: int) -> Context:
    """The dictionary's key for one tensor of ``nbytes``."""
    form, _, what = work.partition(" ")
    if what not in WORKS:
        raise ValueError(f"work {work!r}: expected a format and one of {', '.join(WORKS)}")
    if what in (DURABLE, CACHED):
        return plan.save_context(form, _CPU, what == DURABLE, nbytes, 1)
    return plan.load_context(form, _CPU, what == WARM, nbytes, 1)


def write(path: Path, rows: Sequence[Row], remarks: Iterable[str]) -> None:
    """Write rows, microseconds in them, below the remarks as comments. A tool that took no part has an empty cell."""
    tools = list(dict.fromkeys(tool for row in rows for tool in row.seconds))
    with open(path, "w", newline="") as file:
        file.writelines(f"# {remark}\n" for remark in remarks)
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(["work", "nbytes", *tools])
        for row in rows:
            times = (f"{row.seconds[tool] * 1e6:.0f}" if tool in row.seconds else "" for tool in tools)
            lines.writerow([row.work, row.nbytes, *times])


def read(path: Path) -> list[Row]:
    """The rows of a file, in the order in which they were recorded. ValueError for a file that is no trace."""
    with open(path, newline="") as file:
        lines = csv.DictReader(line for line in file if not line.startswith("#"))
        if (lines.fieldnames or [])[:2] != ["work", "nbytes"]:
            raise ValueError(f"{path}: no trace: expected columns work, nbytes and tools, got {lines.fieldnames}")
        return [_row(line) for line in lines]


def by_work(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each work, in their order: a dictionary learns each for itself."""
    works: dict[str, list[Row]] = {}
    for row in rows:
        works.setdefault(row.work, []).append(row)
    return works


def remarks(folder: Path, rows: Sequence[Row]) -> list[str]:
    """What the timings were taken on, and of what."""
    found = machine.describe(folder)
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return [
        "RECORDED through fastio.save and fastio.load: microseconds that the caller waited, for one uint8 tensor of "
        "nbytes, with each tool;",
        "all tools right after each other at each line, in random order. A durable save includes its fsync; cold: not "
        "in the page cache; warm: in it.",
        f"{found['processor']}, {found['cores']} cores, {found['memory_bytes'] / 1e9:.0f} GB of memory, Linux "
        f"{found['kernel']}, {found['filesystem']['kind']}; {versions}",
        f"{len(rows)} lines, {min(row.nbytes for row in rows)} to {max(row.nbytes for row in rows)} bytes; load "
        f"average over the last quarter of an hour {os.getloadavg()[2]:.1f}",
    ]


def _row(line: Mapping[str, str]) -> Row:
    times = {tool: float(cell) * 1e-6 for tool, cell in line.items() if tool not in ("work", "nbytes") and cell}
    return Row(line["work"], int(line["nbytes"]), times)
