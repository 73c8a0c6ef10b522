"""What a run of ``fastio-bench peers`` says: a sentence and a small table, which are shown first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fastio_bench.harness.stats import BASELINE, Summary
from fastio_bench.machine import disk_limit, limit_tables, memory_limit
from fastio_bench.peers import compare
from fastio_bench.peers.goals import MAPPED
from fastio_bench.report import summary_tables
from fastio_bench.report.table import Cell, ResultTable

_OURS = "fastio"
_LIMITS = (disk_limit.TOOL, disk_limit.RING, memory_limit.TOOL)
_COLUMNS = ("work", "fastio MB/s*", "x torch*", "x best other*", "the best other", "% of the limit*")
_OTHER = slice(3, 5)  # the columns of other libraries
_BEST, _SHARE = 4, len(_COLUMNS) - 1
_LIBRARIES = (
    "other libraries: those that copy the bytes, as fastio does; safetensors maps warm files and copies nothing"
)
_LIMIT = "the limit: its fastest round, of the same rounds"


def lines(summaries: Sequence[Summary]) -> list[str]:
    """One sentence a workload: how much faster fastio is than torch, and than the best other library."""
    return [text for workload in _workloads(summaries) if (text := _sentence(workload, _rows(workload, summaries)))]


def tables(summaries: Sequence[Summary]) -> list[ResultTable]:
    """One table a workload: each work beside torch, the best other library if any ran, and the limit of the machine."""
    found = ((workload, _rows(workload, summaries)) for workload in _workloads(summaries))
    return [_table(workload, summaries, rows) for workload, rows in found if rows]


def _table(workload: str, summaries: Sequence[Summary], rows: list[list[Cell]]) -> ResultTable:
    note = _note(workload, summaries, rows)
    columns = list(_COLUMNS)
    if not _has_others(rows):
        del columns[_OTHER]
        rows = [[*row[: _OTHER.start], *row[_OTHER.stop :]] for row in rows]
    return ResultTable(f"{workload} verdict", f"{workload}, in short", tuple(columns), rows, note=note)


def _has_others(rows: Sequence[Sequence[Cell]]) -> bool:
    return any(row[_BEST] is not None for row in rows)


def _note(workload: str, summaries: Sequence[Summary], rows: Sequence[Sequence[Cell]]) -> str:
    """How many rounds, what is compared, and what a share above 100 % means."""
    own = [one for one in summaries if one.workload == workload and one.work in compare.WORKS]
    over = [str(row[0]) for row in rows if isinstance(share := row[_SHARE], float) and share > limit_tables.ALL]
    low = [f"{', '.join(over)}: {limit_tables.TOO_LOW}"] if over else []
    libraries = [_LIBRARIES] if _has_others(rows) else []
    return "; ".join([summary_tables.of_rounds(own), *libraries, _LIMIT, *low])


def _workloads(summaries: Sequence[Summary]) -> list[str]:
    return list(dict.fromkeys(own.workload for own in summaries))


def _rows(workload: str, summaries: Sequence[Summary]) -> list[list[Cell]]:
    return list(_measured(own for own in summaries if own.workload == workload))


def _measured(summaries: Iterator[Summary]) -> Iterator[list[Cell]]:
    by_work: dict[str, dict[str, Summary]] = {}
    for own in summaries:
        by_work.setdefault(own.work, {})[own.tool] = own
    for work in compare.WORKS:
        tools = by_work.get(work, {})
        if _OURS not in tools:
            continue
        ours = tools[_OURS].bandwidth
        torch = tools.get(BASELINE)
        best = max(_others(tools), key=lambda own: own.bandwidth, default=None)
        limits = [tools[name].best_bandwidth for name in _LIMITS if name in tools]
        yield [
            work,
            ours / 1e6,
            ours / torch.bandwidth if torch else None,
            ours / best.bandwidth if best else None,
            best.tool if best else None,
            100 * ours / max(limits) if limits else None,
        ]


def _others(tools: dict[str, Summary]) -> list[Summary]:
    return [
        own
        for name, own in tools.items()
        if name not in _LIMITS
        and not name.startswith((_OURS, BASELINE + ","))
        and name != BASELINE
        and not (own.work == compare.WARM and name in MAPPED)
    ]


def _sentence(workload: str, rows: Sequence[Sequence[Cell]]) -> str:
    told = [
        f"{_span([row[place] for row in rows])} times as fast as {whom}"
        for place, whom in ((2, "torch"), (3, "the best other library"))
        if any(row[place] is not None for row in rows)
    ]
    return f"{workload}: fastio is {', and '.join(told)}" if told else ""


def _span(cells: Sequence[Cell]) -> str:
    found = [float(cell) for cell in cells if cell is not None]
    low, high = f"{min(found):.1f}", f"{max(found):.1f}"
    return low if low == high else f"{low} to {high}"
