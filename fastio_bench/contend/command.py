"""``fastio-bench contend``: files and training beside processes that take memory bandwidth, and what those lose."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from fastio_bench.contend import contention, tables
from fastio_bench.harness import room
from fastio_bench.harness.command_run import CommandRun, common, forecast
from fastio_bench.harness.rounds import Failure, describe
from fastio_bench.machine.bandwidth_loads import BandwidthLoads, HogError, Traffic
from fastio_bench.offload import training_room
from fastio_bench.papers import figures
from fastio_bench.workloads.training_models import Size

BATCH, QUICK_BATCH = 64, 16  # of the tensor that is saved and loaded: 196 and 49 MiB
SIZE, QUICK_SIZE = Size("transformer", 16, 12, 256), Size("transformer", 8, 4, 256)
_HOGS = "other processes"
_FILES = 3  # of the tensor that lie on the disk at once: one of each tool, and the one being saved


@click.command(short_help="Files and training while others use memory bandwidth.")
@click.option("--rounds", type=click.IntRange(1), help="Rounds; 5, with --quick 3.")
@common
def contend(conduct: CommandRun, rounds: int | None) -> None:
    """Saves, loads and training while other processes take 50, 70 and 90 % of memory bandwidth, and what those lose."""
    rounds = rounds or (3 if conduct.quick else 5)
    workload, cut = room.one_size(QUICK_BATCH if conduct.quick else BATCH, conduct.parent, _FILES)
    files = (_FILES - 1) * workload.nbytes  # which stay while training has its own
    size, smaller = training_room.fitting(QUICK_SIZE if conduct.quick else SIZE, conduct.parent, beside=files)
    conduct.report.notes += [remark for remark in (cut, smaller) if remark]
    disk = max(_FILES * workload.nbytes, files + training_room.disk_bytes(size))
    levels = [f"{level:.0%}" for level in contention.LEVELS]
    settings = {"rounds": rounds, "levels": levels, "workload": workload.name, "training": asdict(size)}
    conduct.report.settings |= settings
    weights = contention.weights(rounds)
    calls: list[contention.Call] = []
    bandwidth = 0.0

    def work(folder: Path) -> None:
        nonlocal bandwidth
        click.echo(forecast(sum(weights), disk), err=True)
        with conduct.meter(weights) as tell:
            tell("memory bandwidth", 0)
            try:
                with BandwidthLoads() as hogs:
                    conduct.report.notes.append(_bound(hogs))
                    bandwidth = hogs.limit()
                    plan = contention.Contention(
                        folder, rounds, workload, size, hogs, bandwidth, tell=tell, calls=calls
                    )
                    for _ in conduct.report.take(plan.run()):
                        pass
            except HogError as error:
                conduct.report.failures.append(Failure("memory bandwidth", "", _HOGS, 0, describe(error)))

    def show() -> list[Any]:
        findings = {"bytes_per_s": bandwidth, "calls": [_document(call) for call in calls]}
        conduct.report.findings["memory"] = findings
        conduct.report.exhibits += [
            *tables.exhibits(calls, bandwidth, _remark()),
            *figures.of(tables.FIGURE_12, tables.FIGURE_13, tables.TABLE_4),
        ]
        return [f"{failure.work}, {failure.tool}: {failure.reason}" for failure in conduct.report.failures]

    conduct.run(work, show)


def _bound(hogs: BandwidthLoads) -> str:
    """What a reader must know of the cores."""
    return (
        f"the other processes: {len(hogs.cores)}, each bound to a core of its own, so that all cores are loaded alike "
        f"in every round; each copies {hogs.nbytes / 2**20:.0f} MiB again and again, which no cache holds. What is "
        "measured is bound to no core, and may use all of them."
    )


def _remark() -> str:
    """What a reader must know of each table."""
    cores = len(os.sched_getaffinity(0))
    return f"The other processes run on the same {cores} cores: both sides also lose processor time to each other."


def _document(call: contention.Call) -> dict[str, Any]:
    """A call for JSON, its histograms of chunks left out."""
    return {**asdict(call), "alone": _bandwidth(call.alone), "beside": _bandwidth(call.beside)}


def _bandwidth(traffic: Traffic | None) -> float | None:
    return None if traffic is None else traffic.bandwidth
