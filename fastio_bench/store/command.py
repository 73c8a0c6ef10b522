"""``fastio-bench store``: the block store of activations beside fio."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

import click

from fastio.sizes import parse_size
from fastio_bench.harness import room
from fastio_bench.harness.command_run import CommandRun, common
from fastio_bench.harness.memory_reserve import available_memory
from fastio_bench.harness.rounds import Failure
from fastio_bench.harness.stats import Summary, summarise
from fastio_bench.machine import disk_limit
from fastio_bench.report.table import Cell, ResultTable
from fastio_bench.store.rounds import STORE, StoreRounds, goals, label

SIZES, QUICK_SIZES = "2MB,8MB,33MB,103MB,310MB", "2MB,33MB"  # FlashNeuron's activations have 2 to 310 MB
ROUNDS, QUICK_ROUNDS = 9, 3
TOTAL, QUICK_TOTAL = 620_000_000, 132_000_000  # bytes that one timed call moves


def _parsed_sizes(context: click.Context, parameter: click.Parameter, value: str | None) -> list[int] | None:
    try:
        sizes = [parse_size(one) or 0 for one in value.split(",")] if value else None
    except ValueError as error:
        raise click.BadParameter(str(error), context, parameter) from error
    if sizes is not None and min(sizes) < 1:
        raise click.BadParameter("an activation has at least one byte", context, parameter)
    return sizes


@click.command()
@click.option("--sizes", metavar="SIZES", callback=_parsed_sizes, help=f"Of activations.  [default: {SIZES}]")
@click.option("--rounds", type=click.IntRange(1), help=f"Rounds of every size.  [default: {ROUNDS}]")
@click.option("--driver", type=click.Choice(["uring", "threads"]), default="uring", show_default=True)
@common
def store(
    command: CommandRun, sizes: list[int] | None, rounds: int | None, driver: Literal["uring", "threads"]
) -> None:
    """Bandwidth and processor time of the block store beside fio's and those of a bare ring, in interleaved rounds.

    Activations are written in sequence and read back in reverse, on a file that fio then overwrites and reads as well.
    What was written is compared with what comes back before anything is timed. About two minutes, and twice 620 MB.
    """
    quick = command.quick
    chosen = sizes or _parsed_sizes(click.get_current_context(), store.params[0], QUICK_SIZES if quick else SIZES) or []
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
