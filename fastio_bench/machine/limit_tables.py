"""Tables of fastio's bandwidth as a share of the disk's limit (fio's and our ring's) and of memory's. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fastio_bench.harness.stats import Summary
from fastio_bench.machine import disk_limit, memory_limit
from fastio_bench.report.table import Cell, ResultTable

COLUMNS = ("work", "object", "by", "MB/s*", "best*", "fastio reaches %*", "of the best %*")
_NOTE = (
    "reads are of the very file that fastio loads, dropped from the page cache; the disk is read into memory that is "
    "there already, while a load also makes the tensors' memory and verifies checksums; where our own ring stands "
    "beside fio, the goals are held against the faster of the two. Warm: the page cache copied into new memory, which "
    "the kernel clears first"
)
ALL = 100.0  # percent
TOO_LOW = (
    "more than 100 % of the limit: the limit was measured too low, as where other work slowed it down in every round; "
    "take fastio's figure for the least that the device can do, and measure again on an idle machine"
)
_LIMITS = (disk_limit.TOOL, disk_limit.RING, memory_limit.TOOL)


def limits(summaries: Sequence[Summary], labels: dict[str, str]) -> list[ResultTable]:
    """One table of all works and workloads with a measured limit; none without.

    ``labels`` has the workloads' display names.
    """
    rows: list[list[Cell]] = []
    for own in summaries:
        task = {other.tool: other for other in summaries if (other.work, other.workload) == (own.work, own.workload)}
        if not task.keys() & {*_LIMITS} or own.tool not in (*_LIMITS, "fastio"):
            continue
        fastio = task.get("fastio")
        shares: list[Cell] = [None, None]
        if fastio is not None and own is not fastio:
            shares = [fastio.bandwidth / own.bandwidth * 100, fastio.bandwidth / own.best_bandwidth * 100]
        name = "fastio" if own.tool == "fastio" else "; ".join(own.ways)
        label = labels.get(own.workload, own.workload)
        rows.append([own.work, label, name, own.bandwidth / 1e6, own.best_bandwidth / 1e6, *shares])
    if not rows:
        return []
    over = any(isinstance(row[-1], float) and row[-1] > ALL for row in rows)
    note = f"{_NOTE}; {TOO_LOW}" if over else _NOTE
    return [ResultTable("limit", "The limits of disk and memory, and how near fastio comes", COLUMNS, rows, note=note)]
