"""``fastio-bench contend``: files and training beside load processes, and the losses of both sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from fastio_bench.contend import contention, modelled, tables
from fastio_bench.harness import room
from fastio_bench.harness.command_run import CommandRun, forecast
from fastio_bench.harness.rounds import Failure, describe
from fastio_bench.machine import core_halves
from fastio_bench.machine.bandwidth_loads import BandwidthLoadError, BandwidthLoads, Traffic
from fastio_bench.offload import device_ways, training_room
from fastio_bench.papers import figures
from fastio_bench.workloads.training_models import Size

BATCH, QUICK_BATCH = 64, 16  # of the tensor that is saved and loaded: 196 and 49 MiB
SIZE, QUICK_SIZE = Size("transformer", 16, 12, 256), Size("transformer", 8, 4, 256)
_HOGS = "other processes"
_FILES = 3  # of the tensor on the disk at once: one of each tool, and the one being saved


def contend(command: CommandRun, rounds: int | None, device: str | None) -> None:
    """Saves, loads and training while other processes take 50, 70 and 90 % of memory bandwidth, and what those lose."""
    rounds = rounds or (3 if command.quick else 5)
    if device:
        _modelled(command, rounds, device)
        return
    workload, cut = room.one_size(QUICK_BATCH if command.quick else BATCH, command.parent, _FILES)
    files = (_FILES - 1) * workload.nbytes  # they stay while training has its own
    size, smaller = training_room.fitting(QUICK_SIZE if command.quick else SIZE, command.parent, beside=files)
    command.report.notes += [remark for remark in (cut, smaller) if remark]
    disk = max(_FILES * workload.nbytes, files + training_room.disk_bytes(size))
    levels = [f"{level:.0%}" for level in contention.LEVELS]
    settings = {"rounds": rounds, "levels": levels, "workload": workload.name, "training": asdict(size)}
    command.report.settings |= settings
    weights = contention.weights(rounds)
    calls: list[contention.Call] = []
    bandwidth = 0.0

    def work(folder: Path) -> None:
        nonlocal bandwidth
        click.echo(forecast(sum(weights), disk), err=True)
        with command.meter(weights) as tell:
            tell("memory bandwidth", 0)
            try:
                with BandwidthLoads() as loads:
                    bandwidth = loads.limit()
                own, others = core_halves.halves()
                with BandwidthLoads(others) as loads, core_halves.bound(own):
                    command.report.notes.append(_bound(loads, own))
                    plan = contention.Contention(
                        folder, rounds, workload, size, loads, bandwidth, tell=tell, calls=calls
                    )
                    for _ in command.report.take(plan.run()):
                        pass
            except BandwidthLoadError as error:
                command.report.failures.append(Failure("memory bandwidth", "", _HOGS, 0, describe(error)))

    def show() -> list[Any]:
        findings = {"bytes_per_s": bandwidth, "calls": [_document(call) for call in calls]}
        command.report.findings["memory"] = findings
        command.report.tables += [
            *tables.tables(calls, bandwidth, _remark()),
            *figures.of(tables.FIGURE_12, tables.FIGURE_13, tables.TABLE_4),
        ]
        return [f"{failure.work}, {failure.tool}: {failure.reason}" for failure in command.report.failures]

    command.run(work, show)


def _modelled(command: CommandRun, rounds: int, kind: str) -> None:
    device = device_ways.ready(kind)
    command.report.mode = kind
    command.report.settings |= {"rounds": rounds, "device": kind, "training": asdict(modelled.SIZE)}
    found: list[modelled.Left] = []
    trained: list[modelled.Modelled] = []

    def work(folder: Path) -> None:
        with BandwidthLoads() as loads:
            bandwidth = loads.limit()
        own, others = core_halves.halves()
        with BandwidthLoads(others) as loads, core_halves.bound(own):
            command.report.notes.append(_bound(loads, own))
            found.extend(modelled.left(loads, bandwidth, contention.LEVELS, rounds))
        trained.extend(modelled.train(device, folder, found))

    def show() -> list[Any]:
        command.report.tables += modelled.tables(found, trained, tables.FIGURE_12, _remark()) if trained else []
        return []

    command.run(work, show)


def _bound(loads: BandwidthLoads, own: Sequence[int]) -> str:
    """The note on the cores."""
    return (
        f"the other processes: {len(loads.cores)}, each bound to a core; each copies {loads.nbytes / 2**20:.0f} MiB "
        f"again and again, which no cache holds. What is measured is bound to {len(own)} others, without load too, "
        "so that the two compete for memory and not for processor time. All they can: as many processes as cores."
    )


def _remark() -> str:
    """The note on each table."""
    own, others = core_halves.halves()
    if own == others:
        return "The other process runs on the same core: both sides also lose processor time to each other."
    return f"What is measured runs on {len(own)} of the cores, the other processes on the other {len(others)}."


def _document(call: contention.Call) -> dict[str, Any]:
    """A call for JSON, without its histograms of chunks."""
    return {**asdict(call), "alone": _bandwidth(call.alone), "beside": _bandwidth(call.beside)}


def _bandwidth(traffic: Traffic | None) -> float | None:
    return None if traffic is None else traffic.bandwidth
