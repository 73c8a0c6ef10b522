"""``fastio-bench store``: the block store of activations beside fio."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

from fastio.sizes import parse_size
from fastio_bench.harness import room
from fastio_bench.harness.command_run import CommandRun
from fastio_bench.harness.memory_reserve import available_memory
from fastio_bench.harness.rounds import Failure
from fastio_bench.harness.stats import Summary, summarise
from fastio_bench.machine import disk_limit
from fastio_bench.report.table import Cell, ResultTable
from fastio_bench.store import addresses
from fastio_bench.store.options import ROUNDS, SIZES
from fastio_bench.store.rounds import STORE, StoreRounds, goals, label

QUICK_SIZES = "2MB,33MB"
QUICK_ROUNDS = 3
TOTAL, QUICK_TOTAL = 620_000_000, 132_000_000  # bytes that one timed call moves


def store(
    command: CommandRun, sizes: list[int] | None, rounds: int | None, driver: Literal["uring", "threads"]
) -> None:
    """Bandwidth and processor time of the block store beside fio's and those of a bare ring, in interleaved rounds."""
    quick = command.quick
    chosen = sizes or [parse_size(one) or 0 for one in (QUICK_SIZES if quick else SIZES).split(",")]
    total = QUICK_TOTAL if quick else TOTAL
    most = min(available_memory() // 2, shutil.disk_usage(command.parent).free // 2)
    if most < total:
        command.report.notes.append(f"{label(most)} a call instead of {label(total)}, {room.WANT}")
        total = most
    kept = [size for size in chosen if size <= most]
    cut = room.remark([f"activations of {label(size)}" for size in chosen if size > most])
    command.report.notes += [cut] if cut else []
    turns = rounds or (QUICK_ROUNDS if quick else ROUNDS)
    command.report.settings |= {
        "sizes": kept, "rounds": turns, "driver": driver, "total": total, "limit": disk_limit.find().name,
    }  # fmt: skip

    def work(folder: Path) -> None:
        plan = StoreRounds(folder, kept, turns, total, driver)
        with command.meter(plan.weights()) as plan.tell:
            for _ in command.report.take(plan.run()):
                pass
        command.report.tables.append(addresses.table(addresses.record(folder)))

    def show() -> list[Any]:
        summaries = summarise(command.report.samples, baseline=disk_limit.TOOL)
        found = list(goals(summaries))
        command.report.findings["goals"] = [goal.document() for goal in found]
        command.report.tables.append(table(summaries, command.report.failures))
        return []

    command.run(work, show)


def table(summaries: list[Summary], failures: list[Failure]) -> ResultTable:
    """The table of all sizes and directions: the block store first, failures last."""
    columns = ("work", "size", "by", "MB/s*", "of the limit*", "least*", "most*", "CPU s/GB*", "way")
    rows: list[list[Cell]] = [
        [
            own.work,
            own.workload,
            own.tool,
            own.bandwidth / 1e6,
            *(own.ratio, own.ratio_low, own.ratio_high),
            own.cpu_per_gb,
            "; ".join(own.ways),
        ]
        for own in summaries
    ]
    rows += [[one.work, one.workload, one.tool, "failed", *[None] * 4, one.reason] for one in failures]
    note = (
        f"{STORE}: activations written in sequence and read in reverse, {TOTAL / 1e6:,.0f} MB a call or one activation "
        "(less with --quick, and where memory or disk hold less) in aligned memory of huge pages; the others overwrite "
        "and read the same file, without syncs; medians, least and most of interleaved rounds"
    )
    return ResultTable("store", "The block store beside the disk's limit", columns, rows, note=note)
