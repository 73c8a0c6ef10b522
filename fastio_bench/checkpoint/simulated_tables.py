"""The tables of ``fastio-bench checkpoint --simulate-ranks``. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fastio_bench.checkpoint.simulated_system import Job, System
from fastio_bench.checkpoint.simulation import LAYOUTS, PER_FOLDER, SHARD, Outcome, simulate
from fastio_bench.report.table import SIMULATED, Cell, ResultTable

NBYTES = 840e9  # 70 billion parameters in bfloat16, with a copy and moments of AdamW: 12 bytes each


def tables(ranks: int, nbytes: float, system: System) -> list[ResultTable]:
    """A table of the layouts at this number of ranks, and one of the time by number of ranks."""
    job = Job(ranks, nbytes)
    found = [simulate(layout, job, system) for layout in LAYOUTS]
    return [_layouts(job, found, system), _scale(nbytes, ranks, system)]


def _layouts(job: Job, found: Sequence[Outcome], system: System) -> ResultTable:
    columns = (
        "layout", "ops/rank*", "ops/rank 0*", "ops/server*", "MB/rank*", "gathered MB*", "stragglers s*", "planned s*",
        "queue s*", "written s*", "commit s*", "total s*", "removal s*",
    )  # fmt: skip
    rows: list[list[Cell]] = [
        [
            one.layout, one.operations_by_rank, one.operations_by_rank_0, one.operations, one.bytes_by_rank / 1e6,
            one.gathered / 1e6, one.straggling, one.planned, one.queue, one.written, one.commit, one.total, one.removal,
        ]
        for one in found
    ]  # fmt: skip
    note = (
        f"{job.nbytes / 1e9:,.0f} GB in {job.tensors:,} tensors, {system.bandwidth / 1e9:,.0f} GB/s in all and "
        f"{system.rank_bandwidth / 1e9:,.0f} GB/s a rank, {system.creations:,.0f} creations a second. Subfolders are "
        f"of {PER_FOLDER} ranks, consolidated files of {SHARD / 1e9:.0f} GB. fastio's Writer and DCP's "
        "FileSystemWriter have the first layout."
    )
    title = f"A save by {job.ranks:,} ranks (simulated)"
    return ResultTable("checkpoint-ranks", title, columns, rows, origin=SIMULATED, note=note)


def _scale(nbytes: float, most: int, system: System) -> ResultTable:
    counts = sorted({max(most >> (2 * step), 1) for step in range(5)})
    rows: list[list[Cell]] = [
        [layout, *(simulate(layout, Job(ranks, nbytes), system).total for ranks in counts)] for layout in LAYOUTS
    ]
    columns = ("layout", *(f"{ranks:,} ranks, s*" for ranks in counts))
    return ResultTable("checkpoint-scale", "Until it is visible (simulated)", columns, rows, origin=SIMULATED)
