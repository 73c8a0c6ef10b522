"""Reads and writes traces: files with the timings of every tool at mixed sizes."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from fastio.dicts.context import Context, load_context, save_context
from fastio.formats.detect import FORMATS
from fastio_bench.machine import machine

SHIPPED = Path(__file__).with_name("recorded.csv")
DURABLE, CACHED, COLD, WARM = "durable save", "save", "cold load", "warm load"
WORKS = (DURABLE, CACHED, COLD, WARM)

_KEYS = ["work", "nbytes"]
_EXPECTED = "columns work, nbytes and one for each tool, as `fastio-bench tools --record` writes them"


class Row(NamedTuple):
    """One size at one work: the seconds of each tool, all measured right after each other.

    ``work`` is a format and one of :data:`WORKS`, as ``"pt cold load"``. The tools are in the order of a dictionary's
    candidates: among equally fast ones it uses the first for large objects.
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
        return save_context(form, "cpu", what == DURABLE, nbytes, 1)
    return load_context(form, "cpu", what == WARM, nbytes, 1)


def text(rows: Sequence[Row], remarks: Iterable[str]) -> str:
    """The trace as text: remarks as comments, then rows with microseconds.

    A tool that took no part has an empty cell.
    """
    tools = list(dict.fromkeys(tool for row in rows for tool in row.seconds))
    told = StringIO(newline="")
    told.writelines(f"# {remark}\n" for remark in remarks)
    lines = csv.writer(told, lineterminator="\n")
    lines.writerow([*_KEYS, *tools])
    for row in rows:
        times = (f"{row.seconds[tool] * 1e6:.0f}" if tool in row.seconds else "" for tool in tools)
        lines.writerow([row.work, row.nbytes, *times])
    return told.getvalue()


def read(path: Path) -> list[Row]:
    """The rows of a file, in recorded order.

    Raises ValueError if the file is not a trace or cannot be replayed: it names the file, the line, what was got and
    what was expected.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            lines = [(n, next(csv.reader([line]))) for n, line in enumerate(file, 1) if line.strip() and line[0] != "#"]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: no trace: got what is no text ({error}); expected {_EXPECTED}") from error
    head = lines[0][1] if lines else []
    if head[:2] != _KEYS or len(head) == len(_KEYS) or len(set(head)) < len(head):
        raise ValueError(f"{path}: no trace: got the columns {', '.join(head) or 'of no line'}; expected {_EXPECTED}")
    if len(lines) == 1:
        raise ValueError(f"{path}: no trace: got no line below the columns; expected {_EXPECTED}")
    rows: list[Row] = []
    able: dict[str, set[str]] = {}
    for number, cells in lines[1:]:
        try:
            rows.append(row := _row(head, cells))
            able[row.work] = able.get(row.work, set(row.seconds)) & set(row.seconds)
            if not able[row.work]:
                raise ValueError(f"got times of {', '.join(row.seconds)}; expected one tool in all lines of {row.work}")
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return rows


def by_work(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each work, in their order: a dictionary learns each work separately."""
    works: dict[str, list[Row]] = {}
    for row in rows:
        works.setdefault(row.work, []).append(row)
    return works


def remarks(folder: Path, rows: Sequence[Row]) -> list[str]:
    """The remarks of a trace: its machine, its settings and its calls."""
    found = machine.describe(folder)
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return [
        "RECORDED through fastio.save and fastio.load: microseconds that the caller waited, for one uint8 tensor of "
        "nbytes, with each tool;",
        "all tools right after each other at each line, in random order. A durable save includes its fsync; cold: not "
        "in the page cache; warm: in it. What a large one takes of memory was touched and freed right before.",
        f"{found['processor']}, {found['cores']} cores, {found['memory_bytes'] / 1e9:.0f} GB of memory, Linux "
        f"{found['kernel']}, {found['filesystem']['kind']}; {versions}",
        f"{len(rows)} lines, {min(row.nbytes for row in rows)} to {max(row.nbytes for row in rows)} bytes; load "
        f"average over the last quarter of an hour {os.getloadavg()[2]:.1f}",
    ]


def _row(head: Sequence[str], cells: Sequence[str]) -> Row:
    """Parse a line's cells under the columns of ``head``. Raises ValueError with got and expected."""
    if len(cells) != len(head):
        raise ValueError(f"got {len(cells)} cells; expected {len(head)}: {', '.join(head)}")
    work, size, *times = cells
    form, _, what = work.partition(" ")
    if form not in FORMATS or what not in WORKS:
        raise ValueError(f"got work {work!r}; expected one of {', '.join(FORMATS)} and one of {', '.join(WORKS)}")
    if not (size.isascii() and size.isdigit() and int(size)):
        raise ValueError(f"got nbytes {size!r}; expected a number of bytes, 1 or more")
    taken = {tool: _seconds(tool, cell) for tool, cell in zip(head[len(_KEYS) :], times, strict=True) if cell}
    if not taken:
        raise ValueError("got no time; expected that of one tool or more")
    return Row(work, int(size), taken)


def _seconds(tool: str, cell: str) -> float:
    try:
        seconds = float(cell) * 1e-6
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError(f"got {cell!r} for {tool}; expected microseconds above 0, or nothing if it took no part")
    return seconds
