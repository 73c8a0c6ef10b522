"""``fastio-bench hybrid``: the paper's machines (simulated), a device if there is one, and state on disk (measured)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click
import torch

from fastio.errors import ToolUnavailableError
from fastio.hybrid import plot
from fastio_bench.harness import room
from fastio_bench.harness.command_run import CommandRun
from fastio_bench.harness.fresh_process import ChildError
from fastio_bench.harness.rounds import Failure, describe
from fastio_bench.hybrid import gpu
from fastio_bench.hybrid import ranks as hybrid_ranks
from fastio_bench.hybrid import store as hybrid_store
from fastio_bench.hybrid.job import Job
from fastio_bench.offload import device_ways
from fastio_bench.papers import (
    memferry_gradients,
    memferry_memory,
    memferry_simulated,
    memferry_timelines,
    memferry_utilisation,
)
from fastio_bench.report import plots

_BYTES, _QUICK_BYTES, _QUICK_STEPS = 1_200_000_000, 200_000_000, 5
_FILES = 3  # files of the parameters' size on the disk at once: gradients and AdamW's two moments
_MEMORIES = 6  # times the parameters' bytes: the memory of plain training with its temporaries


def hybrid(
    command: CommandRun, store: bool, ranks: bool, device: str | None, parameters: int | None, steps: int | None
) -> None:
    """Hybrid training: speed and memory against ZeRO-Offload, and the optimizer's state on disk."""
    steps = steps or (_QUICK_STEPS if command.quick else 20)
    if device is not None and (store or ranks):
        raise click.UsageError("--device measures a step on one device: leave out --ranks and --optimizer-store")
    if store:
        asked = parameters or (_QUICK_BYTES if command.quick else _BYTES)
        nbytes = min(asked, room.most(command.parent, _FILES, _MEMORIES))
        if nbytes < asked:
            sizes = f"{nbytes / 1e9:,.3f} GB of parameters instead of {asked / 1e9:,.3f} GB"
            command.report.notes.append(f"{sizes}, {room.WANT}")
        _measure_store(command, Job(nbytes, steps))
    elif ranks:
        _measure_ranks(command, parameters or _QUICK_BYTES, steps)
    elif device is not None:
        command.report.mode = device
        on = device_ways.ready(device)
        command.run(lambda folder: _on_device(command, on, steps))
    else:
        _simulate(command, steps)


def _simulate(command: CommandRun, steps: int) -> None:
    found: list[memferry_simulated.Simulated] = []

    def work(folder: Path) -> None:
        found.extend(memferry_simulated.every())
        for module in (memferry_simulated, memferry_memory, memferry_utilisation, memferry_gradients):
            command.report.tables += module.tables(found)
        command.report.findings["timelines"] = memferry_timelines.documents(found)
        if torch.cuda.is_available():
            _on_device(command, device_ways.ready("cuda"), steps)
        else:
            command.report.notes.append("no GPU here: nothing of hybrid training's speed was measured")

    def draw(beginning: Path) -> list[Path]:
        drawn = []
        for one in found:
            name = f"{one.machine.name.partition(',')[0]}-{one.network.name}".lower().replace(" ", "-")
            path = plots.named(beginning, name)
            told = f"simulated: {one.network.name} on {one.machine.name}"
            try:
                plot.draw(one.timelines, path, told)
            except ToolUnavailableError as error:
                raise ImportError(str(error)) from error
            drawn.append(path)
        return drawn

    command.run(work, draw=draw)


def _on_device(command: CommandRun, device: torch.device, steps: int) -> None:
    shape = (768, 4, 8, 128) if command.quick else (1024, 24, 8, 384)
    if device.type == device_ways.SIMULATED:  # its kernels are this machine's processors'
        shape = (256, 2, 2, 32) if command.quick else (768, 4, 8, 128)
    command.report.settings |= {"steps": steps, "device": device.type}
    with command.meter([1.0] * len(gpu.ways(device))) as tell:
        command.report.tables.append(gpu.measure(device, *shape, steps, tell))


def _measure_ranks(command: CommandRun, nbytes: int, steps: int) -> None:
    command.report.mode = "ranks"
    command.report.settings |= {"nbytes": nbytes, "steps": steps}

    def work(folder: Path) -> None:
        with command.meter([1.0] * len(hybrid_ranks.WAYS) + [float(len(hybrid_ranks.WAYS))]) as tell:
            try:
                command.report.tables.append(hybrid_ranks.measure(folder, nbytes, steps, tell))
            except ChildError as error:
                command.report.failures.append(Failure("two ranks", "AdamW", "hybrid", 0, describe(error)))

    command.run(work)


def _measure_store(command: CommandRun, job: Job) -> None:
    command.report.mode = "optimizer-store"
    command.report.settings |= asdict(job)

    def work(folder: Path) -> None:
        with command.meter(hybrid_store.weights(job)) as tell:
            try:
                found = hybrid_store.measure(job, folder, tell)
            except ChildError as error:
                command.report.failures.append(Failure(hybrid_store.WORK, "AdamW", "hybrid", 0, describe(error)))
                return
        command.report.tables.append(hybrid_store.table(job, found))
        goals = list(hybrid_store.goals(job, found))
        command.report.findings["runs"] = asdict(found)
        command.report.findings["goals"] = [goal.document() for goal in goals]

    command.run(work)
