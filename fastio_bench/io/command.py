"""``fastio-bench io``: bandwidth and processor time of every tool at every size."""

from __future__ import annotations

import math
import time
from pathlib import Path

import click

import fastio
from fastio.transports import registry
from fastio.volumes.opening import tools_of
from fastio_bench.doctor import nvme
from fastio_bench.harness import fresh_process, timing
from fastio_bench.harness.command_run import CommandRun, forecast
from fastio_bench.harness.round_budget import RoundBudget
from fastio_bench.harness.stats import summarise
from fastio_bench.io import cost_probe, namespaces, sweep
from fastio_bench.io import tables as io_tables
from fastio_bench.machine import disk_limit
from fastio_bench.peers import catalogue
from fastio_bench.peers.peer import Peer
from fastio_bench.report import summary_tables
from fastio_bench.report.table import ResultTable
from fastio_bench.workloads.objects import MIB, Workload

ROUNDS, QUICK_ROUNDS = 5, 3
SECONDS, QUICK_SECONDS = 14 * 60.0, 100.0  # the rounds are chosen to fit into these
_PROBING = "probing how long it will take"


def io(
    command: CommandRun, rounds: int | None, device: str, chosen: tuple[str, ...], volumes: tuple[str, ...] = ()
) -> None:
    """Bandwidth by tool, size, write and read, cold and warm, and what it costs in processor time."""
    if files := [volume for volume in volumes if not tools_of(volume)]:
        raise click.UsageError(
            f"--volume {files[0]}: expected a volume on a namespace, as vfio:0000:03:00.0; tools of "
            "files are measured in --dir"
        )
    device = "cpu" if device.partition(":")[0] == "cpu" else device
    tools = _tools(command, device, chosen)
    batches = sweep.QUICK_BATCHES if command.quick else sweep.BATCHES
    kept, cut = sweep.fitting(batches, command.parent, sweep.files(tools))
    command.report.notes += [cut] if cut else []
    unknown = "the tensors lie in host memory, no GPU takes part" if device == "cpu" else timing.gpu_problem(device)
    command.report.notes += [f"no GPU utilisation: {unknown}"] if unknown else []
    most = rounds or (QUICK_ROUNDS if command.quick else ROUNDS)
    seconds = math.inf if rounds else QUICK_SECONDS if command.quick else SECONDS
    settings = {tool.label: tool.settings for tool in tools}
    command.report.mode = "" if device == "cpu" else device.replace(":", "-")
    command.report.settings |= {
        "rounds": most,
        "device": device,
        "tools": settings,
        "volumes": list(volumes),
        "limit": disk_limit.find().name,
    }

    def work(folder: Path) -> None:
        start = time.monotonic()
        most_probed = max((workload.nbytes for workload in cost_probe.sizes(kept)), default=0) * sweep.files(tools[:1])
        click.echo(f"{_PROBING}: {most_probed / MIB:,.0f} MiB of files, at most", err=True)
        with command.meter([1.0]) as tell, fresh_process.paired():
            tell(_PROBING, 0)
            costs = cost_probe.costs(folder, tools, device, kept)
        budget = RoundBudget(costs, seconds - (time.monotonic() - start), most)
        disk = max((workload.nbytes for workload in kept), default=0) * sweep.files(tools)
        command.report.findings["forecast"] = {"seconds": budget.total(), "disk_bytes": disk, "rounds": budget.plan()}
        click.echo(announcement(budget, kept, disk), err=True)
        plan = sweep.Sweep(folder, most, kept, tools, device, budget, volumes=volumes)
        with command.meter(plan.weights()) as plan.tell, fresh_process.paired():
            for _ in command.report.take(plan.run()):
                pass
        command.report.notes += [fewer] if (fewer := _fewer(kept, budget.given, most)) else []

    def show() -> list[ResultTable]:
        summaries, failures = summarise(command.report.samples), command.report.failures
        command.report.tables += io_tables.measured(summaries, failures)
        command.report.tables.append(namespaces.table(volumes, nvme.find().controllers))
        return [summary_tables.matrix("fastio's tools", summaries)]

    command.run(work, show)


def _tools(command: CommandRun, device: str, chosen: tuple[str, ...]) -> list[Peer]:
    """The tools to measure. Adds a note on each missing one."""
    kind, used, known = device.partition(":")[0], [], fastio.tools()
    strange = set(chosen) - {status.name for status in known}
    for status in known:
        tool = registry.find(status.name)
        if chosen and status.name not in chosen:
            continue
        if tool.transport is not None and tool.transport.capabilities.namespaces:
            if chosen:
                raise click.UsageError(f"{tool.name} moves no files: name a volume, as in --volume {tool.name}:...")
        elif tool.transport is None:
            command.report.notes.append(f"{tool.name}: {tool.reason}; {tool.cure}".rstrip("; "))
        elif kind in status.devices and (chosen or tool.transport.capabilities.automatic):
            used.append(catalogue.find(f"{catalogue.TOOL}{tool.name}", device))
    if strange or not used:
        named = [f"{status.name} ({', '.join(status.devices)})" for status in known if status.available]
        missing = f"no tool {', '.join(sorted(strange))}" if strange else f"no such tool here for {device}"
        raise click.UsageError("\n".join([f"{missing}; there are {', '.join(named)}", *command.report.notes]))
    return used


def announcement(budget: RoundBudget, sizes: list[Workload], disk: int) -> str:
    """The announcement: how long the run takes, its disk space, its rounds of each size."""
    told = [f"{forecast(budget.total(), disk)}, {budget.most} rounds"]
    fewer = _fewer(sizes, budget.plan(), budget.most)
    return "; ".join([*told, fewer] if fewer else told)


def _fewer(sizes: list[Workload], rounds: dict[str, int], most: int) -> str:
    """The remark on sizes with fewer rounds than ``most``; empty if there are none."""
    less = [(size.nbytes / MIB, rounds[size.name]) for size in sizes if rounds.get(size.name, most) < most]
    words = {0: "left out", 1: "one round"}
    said = [f"{mib:,.10g} MiB {words.get(count, f'{count} rounds')}" for mib, count in less]
    return f"to end in time: {', '.join(said)}" if said else ""
