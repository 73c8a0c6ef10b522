"""Tables and goals of ``fastio-bench checkpoint``. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fastio.checkpoint.saving.chunked_save import LEAST
from fastio_bench.checkpoint.works import (
    ALONE,
    BASELINES,
    BLOCKED,
    BLOCKED_OF,
    BUDGET_PART,
    BUDGETED,
    COLUMNS,
    COPY,
    DCP,
    DCP_CACHED,
    DURABLE,
    FASTIO,
    FULL,
    INCREMENTAL,
    PROCESS,
    RANKS_LOAD,
    RANKS_SAVE,
    RESHARD,
    RESTORE,
    ROWS,
    SLOWED,
    STEP_OF,
    TORCH,
    WORKS,
)
from fastio_bench.harness.rounds import Failure, Sample
from fastio_bench.harness.stats import Summary, summarise
from fastio_bench.machine import disk_limit
from fastio_bench.peers.goals import Goal
from fastio_bench.report.summary_tables import spread
from fastio_bench.report.table import Cell, ResultTable
from fastio_bench.workloads.objects import MIB

_CONSOLIDATION = 256 << 20  # bytes of memory that a consolidation may take
_CONSOLIDATED = (
    "Parts of the parameters in safetensors, not in the page cache, become four files of whole tensors: torch's "
    "consolidate_safetensors_files, also until its files are synced, and fastio's consolidate, which syncs its own and "
    "compares every CRC-32. The disk's limit: the same files are read while as many bytes are written into a new one, "
    "past the page cache, and synced, without a checksum."
)
GRANTED = 64 << 20  # bytes beside the snapshot, as any save by fastio may take beside the object
_NOTES = {
    BLOCKED: "Until save returns; each process's first is not counted. The copy is of the same tensors, by all "
    "threads, into memory that is there.",
    SLOWED: "A step of a small network on all processors, and of which it is a multiple: a step while nothing is "
    "written. MB/s are of its parameters.",
    DURABLE: "Until the bytes would survive a power cut. Beyond: the peak of memory above the state, first save "
    "included. The disk's limit: as many bytes in one fresh file, past the page cache, synced.",
    **dict.fromkeys(
        BLOCKED_OF.values(),
        "Until save returns on the slowest rank; each tool's first is not counted. Tensors are sharded over the ranks, "
        "processes on this machine. The copy is of the same tensors, by all ranks at once, into memory that is there.",
    ),
    **dict.fromkeys(
        STEP_OF.values(),
        "Until the files of all ranks would survive a power cut. The disk's limit: one writer of all.",
    ),
    RESHARD: "Into tensors that are there, the files not in the page cache; both read the step of a Checkpointer. The "
    "disk's limit: the same ranks read the files with their parts at once, past the page cache, into one piece of "
    "resident memory, and check nothing.",
    RANKS_SAVE: "Until all ranks have saved; tensors are sharded over both, as FSDP2 does it. dcp.save with the "
    "storage of either: FileSystemWriter, the processors shared out as its threads, which syncs its files, or fastio's "
    "Writer. The disk's limit: one writer of all.",
    RANKS_LOAD: "Into tensors that are there, the files not in the page cache: dcp.load with the storage of either.",
    RESTORE: "In fresh processes, files not in the page cache. Beyond: the peak of memory above the live state. "
    "The disk's limit: torch's file, into memory that is there.",
    INCREMENTAL: "Until the bytes would survive a power cut.",
    ROWS: _CONSOLIDATED,
    COLUMNS: _CONSOLIDATED,
}


def summaries(samples: Sequence[Sample]) -> list[Summary]:
    """One summary for each work and tool, each work with its own baseline."""
    return [
        summary
        for work in WORKS
        for summary in summarise([sample for sample in samples if sample.work == work], BASELINES[work])
    ]


def tables(found: Sequence[Summary], failures: Sequence[Failure]) -> list[ResultTable]:
    """A table for each work: medians, or "failed" with the reason."""
    shown = []
    for number, work in enumerate(WORKS):
        rows: list[list[Cell]] = [_row(own) for own in found if own.work == work]
        rows += [
            [failure.tool, "failed", None, None, "", None, None, None, failure.reason]
            for failure in failures
            if failure.work == work
        ]
        if rows:
            columns = (
                *("tool", "ms*", "MB/s*", f"x {BASELINES[work]}*", "spread", "CPU s*"),
                *("rounds*", "beyond MiB*", "way"),
            )
            title = work[0].upper() + work[1:]
            shown.append(ResultTable(f"checkpoint-{number}", title, columns, rows, note=_NOTES.get(work, "")))
    return shown


def _row(own: Summary) -> list[Cell]:
    beyond = None if own.extra_bytes is None else own.extra_bytes / MIB
    cpu = own.cpu_per_gb * own.nbytes / 1e9
    rate, ratio = own.bandwidth / 1e6, own.ratio
    return [own.tool, own.seconds * 1e3, rate, ratio, spread(own), cpu, own.rounds, beyond, "; ".join(own.ways)]


def goals(found: Sequence[Summary]) -> list[Goal]:
    """The goals that these summaries can answer."""
    by_name = {(own.work, own.tool): own for own in found}
    return [*_times(by_name), *_slowdowns(by_name), *_memory(by_name)]


def _times(found: dict[tuple[str, str], Summary]) -> Iterable[Goal]:
    """Goals for median seconds: the other's over fastio's, or fastio's over DCP's for the time training is blocked."""
    for work, other, asked in (
        (BLOCKED, COPY, 0.95),
        (DURABLE, TORCH, 2.3),
        *((work, COPY, 0.95) for work in BLOCKED_OF.values()),
        (DURABLE, disk_limit.TOOL, 0.9),
        *((work, disk_limit.TOOL, 0.85) for work in STEP_OF.values()),
        (RESHARD, disk_limit.TOOL, 0.8),
        (RANKS_SAVE, DCP, 2.0),
        (RESTORE, TORCH, 1.7),
        (INCREMENTAL, FULL, 5.0),
        (ROWS, DCP, 5.0),
        (COLUMNS, DCP, 5.0),
        (ROWS, disk_limit.TOOL, 0.9),
        (COLUMNS, disk_limit.TOOL, 0.9),
    ):
        own, theirs = found.get((work, FASTIO)), found.get((work, other))
        if own and theirs:
            yield Goal(work, own.workload, other, asked, theirs.seconds / own.seconds)
    for work, other, most in (
        *((BLOCKED, other, 0.2) for other in (DCP, DCP_CACHED)),
        *((work, DCP_CACHED, 0.5) for work in BLOCKED_OF.values()),
    ):
        own, theirs = found.get((work, FASTIO)), found.get((work, other))
        if own and theirs:
            yield Goal(work, own.workload, f"{other}'s", most, own.seconds / theirs.seconds, least=False)


def _slowdowns(found: dict[tuple[str, str], Summary]) -> Iterable[Goal]:
    """Goals for the time of a training step while a step is written, over that of one while nothing is."""
    alone = found.get((SLOWED, ALONE))
    for tool in (FASTIO, PROCESS):
        own = found.get((SLOWED, tool))
        if own and alone:
            yield Goal(f"{SLOWED}: {tool}", own.workload, ALONE, 1.05, own.seconds / alone.seconds, least=False)


def _memory(found: dict[tuple[str, str], Summary]) -> Iterable[Goal]:
    own, theirs = found.get((RESTORE, FASTIO)), found.get((RESTORE, TORCH))
    if own and theirs and own.extra_bytes is not None and theirs.extra_bytes:
        share = own.extra_bytes / theirs.extra_bytes
        yield Goal(RESTORE, own.workload, "torch's peak of memory", 0.5, share, least=False)
    for work in (ROWS, COLUMNS):
        own = found.get((work, FASTIO))
        if own and own.extra_bytes is not None:
            yield Goal(work, own.workload, "memory", _CONSOLIDATION / MIB, own.extra_bytes / MIB, "MiB", least=False)
    for tool, against, part in ((FASTIO, "one snapshot", 1), (BUDGETED, "memory_budget", BUDGET_PART)):
        own = found.get((DURABLE, tool))
        if own and own.extra_bytes is not None:
            room = max(own.nbytes // part, LEAST if part > 1 else 0)
            named = f"memory: {against} and {GRANTED // MIB} MiB"
            yield Goal(DURABLE, own.workload, named, (room + GRANTED) / MIB, own.extra_bytes / MIB, "MiB", least=False)
