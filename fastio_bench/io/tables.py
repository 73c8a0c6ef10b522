"""Tables of ``fastio-bench io`` in the layout of Fastensor's tables 2 to 6. Pure.

The paper's writes, and everything else after its table 2 that goes through the page cache, include its flush (section
3.2). So durable writes answer them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastio_bench.harness.rounds import Failure
from fastio_bench.harness.stats import Summary
from fastio_bench.io import sweep
from fastio_bench.report.summary_tables import busy, io_efficiency, size
from fastio_bench.report.table import Cell, ResultTable
from fastio_bench.workloads import objects

BATCH_4 = 12_845_056  # bytes: the size of the paper's tables 5 and 6
FASTENSOR = "Fastensor, table {}"
_BANDWIDTHS = (
    (sweep.WARM, "warm-read", FASTENSOR.format(2)),
    (sweep.COLD, "cold-read", FASTENSOR.format(3)),
    (sweep.DURABLE, "durable-write", FASTENSOR.format(4)),
    (sweep.CACHED, "write", f"{FASTENSOR.format(4)}, without its flush"),
)
_ROUNDS = "rounds*"
_ROUNDS_NOTE = "medians of so many rounds; where it is one, what that round took"
_UTILISATION_NOTE = "cores kept busy: CPU seconds of user and system by seconds; IOef is MB/s by that"


@dataclass(frozen=True, slots=True)
class Grid:
    """Summaries and failures by work, size and tool."""

    summaries: Sequence[Summary]
    failures: Sequence[Failure]

    @property
    def tools(self) -> list[str]:
        """The tools that took part, in order."""
        return list(dict.fromkeys([s.tool for s in self.summaries] + [f.tool for f in self.failures]))

    @property
    def sizes(self) -> list[tuple[str, int]]:
        """Workloads and their bytes, the largest first, with those at which every tool failed."""
        found = {s.workload: s.nbytes for s in self.summaries}
        found |= {f.workload: objects.find(f.workload).nbytes for f in self.failures if f.workload not in found}
        return sorted(found.items(), key=lambda size: -size[1])

    def row(self, work: str, workload: str, value: Callable[[Summary], Cell]) -> list[Cell]:
        """The figures of all tools and their rounds; empty if Ctrl-C came before the first."""
        cells = [self.cell(work, workload, tool, value) for tool in self.tools]
        return [*cells, self._rounds(work, workload)] if any(cell is not None for cell in cells) else []

    def _rounds(self, work: str, workload: str) -> Cell:
        """The rounds of the tools that did not fail: the least and the most if Ctrl-C made them differ."""
        counts = [self.cell(work, workload, tool, lambda own: own.rounds) for tool in self.tools]
        known = sorted({count for count in counts if isinstance(count, int)})
        return f"{known[0]}-{known[-1]}" if len(known) > 1 else known[0] if known else None

    def cell(self, work: str, workload: str, tool: str, value: Callable[[Summary], Cell]) -> Cell:
        """The figure; "failed" if the tool failed, None if it took no part."""
        for failure in self.failures:
            if (failure.work, failure.workload, failure.tool) == (work, workload, tool):
                return "failed"
        for own in self.summaries:
            if (own.work, own.workload, own.tool) == (work, workload, tool):
                return value(own)
        return None


def measured(summaries: Sequence[Summary], failures: Sequence[Failure]) -> list[ResultTable]:
    """Tables 2 to 6 as measured here; 6 only with a GPU."""
    grid = Grid(summaries, failures)
    columns = [f"{tool}*" for tool in grid.tools]
    found = []
    for work, name, source in _BANDWIDTHS:
        rows = [
            [size(nbytes), *row] for workload, nbytes in grid.sizes if (row := grid.row(work, workload, _megabytes))
        ]
        title, heads = f"{work.capitalize()}, MB/s", ["size MiB*", *columns, _ROUNDS]
        found.append(ResultTable(f"io-{name}", title, heads, rows, source=source, note=_ROUNDS_NOTE))
    shared = FASTENSOR.format(5)
    for name, title, value in (
        ("cpu-utilisation", "CPU utilisation", busy),
        ("ioef", "IOef: MB/s by CPU utilisation", io_efficiency),
        ("cpu-seconds", "CPU seconds for 10^9 bytes", lambda own: own.cpu_per_gb),
    ):
        rows = [
            [work, size(nbytes), *row]
            for work in sweep.WORKS
            for workload, nbytes in grid.sizes
            if (row := grid.row(work, workload, value))
        ]
        note = _ROUNDS_NOTE if name == "cpu-seconds" else f"{_UTILISATION_NOTE}; {_ROUNDS_NOTE}"
        heads = ["work", "size MiB*", *columns, _ROUNDS]
        found.append(ResultTable(f"io-{name}", title, heads, rows, source=shared, note=note))
    found += _at_batch_4(grid, "cpu", "CPU", shared, busy)
    if any(own.gpu_busy is not None for own in summaries):
        found += _at_batch_4(grid, "gpu", "GPU", FASTENSOR.format(6), lambda own: own.gpu_busy)
    return [table for table in found if table.rows]


def _megabytes(own: Summary) -> float:
    return own.bandwidth / 1e6


def _efficiency(own: Summary, utilisation: float | None) -> float | None:
    """IOef of either processor (section 3.3, equation 1)."""
    return own.bandwidth / 1e6 / utilisation if utilisation else None


def _at_batch_4(
    grid: Grid, name: str, processor: str, source: str, utilisation: Callable[[Summary], float | None]
) -> list[ResultTable]:
    """One row a tool, as in the paper's tables 5 and 6; no table if that size was not measured."""
    workload = next((workload for workload, nbytes in grid.sizes if nbytes == BATCH_4), None)
    if workload is None:
        return []
    rows: list[list[Cell]] = []
    for tool in grid.tools:
        row: list[Cell] = [tool]
        for work in (sweep.WARM, sweep.COLD, sweep.DURABLE):
            row += [
                grid.cell(work, workload, tool, value)
                for value in (utilisation, _megabytes, lambda own: _efficiency(own, utilisation(own)))
            ]
        if any(cell is not None for cell in row[1:]):  # the disk's limit is measured at larger sizes alone
            rows.append(row)
    columns = [f"{figure} {what}*" for what in ("r_C", "r", "w") for figure in ("Util", "MB/s", "IOef")]
    title = f"{processor} utilisation and IOef at batch size 4"
    note = "r_C: warm reads, r: cold reads, w: durable writes; the paper has one Util_r for both kinds of reads"
    return [ResultTable(f"io-batch-4-{name}", title, ["tool", *columns], rows, source=source, note=note)]
