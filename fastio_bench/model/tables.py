"""Tables of seconds by model and tool: the Fastensor paper's table 9, transposed. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fastio_bench.harness.rounds import Failure
from fastio_bench.harness.stats import Summary
from fastio_bench.papers import figures
from fastio_bench.peers import compare
from fastio_bench.report import summary_tables
from fastio_bench.report.table import Cell, ResultTable
from fastio_bench.workloads import objects
from fastio_bench.workloads.models import MODELS

MIB = 1 << 20
SOURCE = "Fastensor, table 9"
_PAPERS_MIB = {row[0]: row[1] for table in figures.of(SOURCE) for row in table.rows}
PAPER_MIB = {name: _PAPERS_MIB[model.paper] for name, model in MODELS.items() if model.paper}
"""The sizes of the paper's files (its "MB" are MiB), by the names of ``models.MODELS``."""

_NOTES = {
    compare.CACHED: "The paper does not say whether its saves are durable; these are not.",
    compare.DURABLE: "With fsync, which the paper does not mention.",
    compare.COLD: "In fresh processes, the file not in the page cache. The paper's table has no loads.",
    compare.WARM: "In fresh processes, the file in the page cache. The paper's table has no loads.",
}


def tables(summaries: Sequence[Summary], failures: Sequence[Failure]) -> list[ResultTable]:
    """A table of median seconds for each work, in the paper's order, with "failed" or a gap where there is none."""
    found = []
    for work in compare.WORKS:
        own = [summary for summary in summaries if summary.work == work]
        failed = [failure for failure in failures if failure.work == work and not failure.refused]
        tools = summary_tables.tools([*own, *failed])
        seconds: dict[tuple[str, str], Cell] = {(s.workload, s.tool): s.seconds for s in own}
        seconds |= {(f.workload, f.tool): "failed" for f in failed}
        sizes: dict[str, tuple[float, int | None]] = {
            f.workload: (objects.model(f.workload).nbytes / MIB, None) for f in failed
        }
        sizes |= {summary.workload: (summary.nbytes / MIB, summary.rounds) for summary in own}
        rows: list[list[Cell]] = [
            [MODELS[name].label, *sizes[name], *(seconds.get((name, tool)) for tool in tools)]
            for name in MODELS
            if name in sizes
        ]
        if rows:
            columns = ("model", "MiB*", "rounds*", *(f"{tool} s*" for tool in tools))
            name, title = work.replace(" ", "-"), f"Seconds of a {work} by model and tool"
            found.append(ResultTable(name, title, columns, rows, source=SOURCE, note=_NOTES[work]))
    return found
