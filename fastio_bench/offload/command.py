"""``fastio-bench offload``: training with offload beside plain training, and the papers' machines, simulated."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import torch

from fastio import devices
from fastio.runtime.installation import pip_install
from fastio_bench.harness import room
from fastio_bench.harness.command_run import CommandRun
from fastio_bench.harness.fresh_process import ChildError
from fastio_bench.harness.rounds import Failure, describe
from fastio_bench.offload import accuracy as offload_accuracy
from fastio_bench.offload import charts as offload_charts
from fastio_bench.offload import depth as offload_depth
from fastio_bench.offload import device_steps, device_ways, summary, training_room
from fastio_bench.offload import host_time as offload_host_time
from fastio_bench.offload import joint as offload_joint
from fastio_bench.offload import largest as offload_largest
from fastio_bench.offload import settings as offload_ways
from fastio_bench.offload import steps as offload_steps
from fastio_bench.offload.training_job import Job
from fastio_bench.offload.training_ways import PLAIN
from fastio_bench.papers import batch_growth, offload_simulated, vdnn_networks, vdnn_six, vdnn_traffic
from fastio_bench.peers.goals import Goal
from fastio_bench.report import charts
from fastio_bench.report.table import ResultTable
from fastio_bench.tools import rebuilt_dictionaries
from fastio_bench.workloads.objects import MIB
from fastio_bench.workloads.training_models import ARCHITECTURES, Size

_QUICK_DEPTH, _QUICK_BATCH = 4, 8
_GRADIENTS = 2  # files of gradients on the disk at once: plain training's and those of the way compared with it


def offload(
    command: CommandRun,
    model: str,
    policies: tuple[str, ...],
    codecs: tuple[str, ...],
    tools: tuple[str, ...],
    batches: tuple[int, ...],
    device: str | None,
    budget: int | None,
    host_budget: int | None,
    memory_limit: int | None,
    accuracy: bool,
    host_time: bool,
    joint: bool,
    largest: bool,
    simulate: bool,
    **sizes: int | None,
) -> None:
    """Step time, peak memory and gradients with activations offloaded, beside plain training and others' ways."""
    if simulate:
        command.report.mode = "simulated"
        _simulate(command)
        return
    if largest:
        command.report.mode = "largest"
        _largest(command, device)
        return
    if host_time:
        command.report.mode = "host-time"
        _host_time(command, sizes["rounds"] or (3 if command.quick else 15), device)
        return
    if joint:
        command.report.mode = "joint"
        _joint(command, batches, sizes)
        return
    codecs = codecs or ("fp16" if accuracy else "lossless",)
    shared: dict[str, Any] = {"budget": budget}
    if host_budget is not None:
        shared["host_budget"] = host_budget
    if (accuracy or memory_limit is not None) and (tools or max(map(len, (policies, codecs, batches))) > 1):
        option = "--accuracy" if accuracy else "--memory-limit"
        raise click.UsageError(f"{option} takes one --policy, one --codec and one --batch, and no --tool")
    settings: dict[str, Any] = {"policy": policies[0], "codec": codecs[0], **shared}
    on_device = device not in (None, "cpu")
    if on_device and (accuracy or memory_limit is not None or len(batches) > 1):
        raise click.UsageError(f"--device {device} takes one --batch, and no --accuracy or --memory-limit")
    if accuracy:
        command.report.mode = "accuracy"
        _accuracy(command, settings)
        return
    usable = [*rebuilt_dictionaries.tools(), *offload_ways.MODES]
    missing = [tool for tool in tools if tool not in usable]
    if missing:
        raise click.UsageError(f"--tool {missing[0]}: not one that can be used here: {', '.join(usable)}")
    known = ARCHITECTURES[model]
    small = command.quick or device == device_ways.SIMULATED  # whose times are modelled, whatever the size
    batches = tuple(dict.fromkeys(batches)) or (min(_QUICK_BATCH, known.batch) if small else known.batch,)
    depth = sizes["depth"] or (min(_QUICK_DEPTH, known.depth) if small else known.depth)
    width, steps = sizes["width"] or known.width, sizes["steps"] or (2 if command.quick else 5)
    if on_device:
        command.report.mode = f"{model}-{device}"
        size = Size(model, batches[0], depth, width)
        own = offload_ways.asked(policies, codecs, shared)
        if tools:
            own |= offload_ways.fastensor(tools, {**shared, "host_budget": 0})
        command.report.settings |= {"policy": policies, "codec": codecs, "tool": tools, **shared}
        _on_device(command, str(device), size, sizes["rounds"] or (2 if command.quick else 3), own)
        return
    if memory_limit is not None:
        command.report.mode = f"memory-limit-{model}"
        job = Job(policies[0], model, batches[0], depth, width, steps, "", memory_limit=memory_limit)
        command.report.settings |= {"model": model, "batch": job.batch, "depth": depth, "width": width, **settings}
        command.report.settings["memory_limit"] = memory_limit
        size = Size(model, job.batch, depth, width)
        _deepest(command, job, settings, training_room.deepest(size, command.parent, offload_depth.MOST))
        return
    kept = []
    for batch in batches:
        size, cut = training_room.fitting(Size(model, batch, depth, width), command.parent, gradients=_GRADIENTS)
        command.report.notes += [cut] if cut else []
        kept += [size] if size not in kept else []
    rounds = sizes["rounds"] or (1 if command.quick else 3)
    command.report.mode = model
    trained = {"model": model, "batch": [size.batch for size in kept], "depth": depth, "width": width}
    moved = {"policy": policies, "codec": codecs, "tool": tools, **shared}
    command.report.settings |= {**trained, **moved, "steps": steps, "rounds": rounds}
    own = offload_ways.asked(policies, codecs, shared)
    offload_steps.compare(command, kept, steps, rounds, own, offload_ways.all_of(own, tools, shared))


def _deepest(command: CommandRun, job: Job, settings: dict[str, Any], most: int) -> None:
    """Search the largest depth. ``most``: the depth that the disk has room for."""
    found: list[offload_depth.Deepest] = []
    limit = f"{(job.memory_limit or 0) / MIB:,.0f} MiB"
    limit += " beyond an idle process (RLIMIT_DATA, freed blocks given back)"
    title = f"{job.architecture}, width {job.width}, batch {job.batch}, in {limit}"

    def work(folder: Path) -> None:
        with command.meter([]) as tell:
            search = offload_depth.deepest(
                job, {job.way: settings}, folder, not command.quick, lambda what: tell(what, 0), most
            )
            try:
                for one in search:
                    found.append(one)  # one by one, so that an interrupt keeps those found so far
            except ChildError as error:
                way = job.way if found else PLAIN
                command.report.failures.append(
                    Failure("largest depth", job.architecture, way, 0, describe(error)),
                )

    def show() -> list[str]:
        depths = {one.way: one.depth for one in found}
        goals = []
        if depths.get(job.way) == most < offload_depth.MOST:
            command.report.notes.append(f"{job.way}: no depth above {most:,} is tried, {room.WANT}")
        if job.way in depths and 0 < offload_depth.GOAL * depths[PLAIN] <= most:
            ratio = depths[job.way] / depths[PLAIN]
            goals.append(Goal("largest depth", title, PLAIN, offload_depth.GOAL, ratio))
        command.report.findings["depths"] = [asdict(one) for one in found]
        _keep(command, goals)
        return [title]

    command.run(work, show, lambda beginning: _draw(command, beginning))


def _accuracy(command: CommandRun, settings: dict[str, Any]) -> None:
    seeds = 2 if command.quick else offload_accuracy.SEEDS
    epochs = 2 if command.quick else offload_accuracy.EPOCHS
    way = f"{settings['policy']}, {settings['codec']}"
    found: list[offload_accuracy.Accuracy] = []
    command.report.settings |= {**settings, "seeds": seeds, "epochs": epochs}
    try:
        tests = len(offload_accuracy.load(0).test[1])
    except ModuleNotFoundError as error:
        raise click.UsageError(
            f"--accuracy needs scikit-learn ({error}): {pip_install('bench', 'scikit-learn')}"
        ) from error

    def work(folder: Path) -> None:
        with command.meter([1.0] * seeds * 2) as tell:
            found.extend(offload_accuracy.compare(way, folder, settings, seeds, epochs, tell))

    def show() -> list[str]:
        goals = []
        if found:
            plain, own = found
            apart = abs(own.mean - plain.mean) / offload_accuracy.noise(plain, tests)
            asked = summary.ACCURACY_GOAL
            goals.append(Goal("accuracy on digits", way, PLAIN, asked, apart, "deviations apart", least=False))
        command.report.findings["accuracy"] = [{**asdict(o), "mean": o.mean, "spread": o.spread} for o in found]
        _keep(command, goals)
        return [f"{tests} test images of scikit-learn's digits, {seeds} seeds, {epochs} epochs"]

    command.run(work, show, lambda beginning: _draw(command, beginning))


def _on_device(
    command: CommandRun,
    kind: str,
    size: Size,
    rounds: int,
    own: offload_ways.Ways,
) -> None:
    device = device_ways.ready(kind)
    command.report.settings |= {**asdict(size), "device": kind, "rounds": rounds}
    found: list[device_steps.Step] = []

    def work(folder: Path) -> None:
        found.extend(device_steps.measure(device, folder, size, rounds, own))

    def show() -> list[ResultTable]:
        command.report.findings["device_steps"] = [asdict(step) for step in found]
        command.report.tables += device_steps.tables(found, str(size), devices.identity(device))
        return []

    command.run(work, show, lambda _: ())


def _host_time(command: CommandRun, rounds: int, device: str | None) -> None:
    """On the CPU, and on a device: that of ``device``, or each kind of accelerator that there is."""
    command.report.settings["rounds"] = rounds
    found: list[offload_host_time.HostTime] = []
    if device in (None, "cpu"):
        kinds = [] if device else [accelerator.kind for accelerator in devices.available()]
    else:
        kinds = [device_ways.ready(str(device)).type]

    def work(folder: Path) -> None:
        for kind in ("cpu", *kinds):
            found.extend(offload_host_time.measure(torch.device(kind), folder, rounds))

    def show() -> list[ResultTable]:
        command.report.findings["host_time"] = [asdict(one) for one in found]
        return [offload_host_time.table(found)] if found else []

    command.run(work, show, lambda _: ())


def _largest(command: CommandRun, device: str | None) -> None:
    if device != device_ways.SIMULATED:
        raise click.UsageError(f"--largest takes --device {device_ways.SIMULATED}: its memory is set to the networks'")
    on = device_ways.ready(device)
    names = offload_largest.QUICK if command.quick else tuple(offload_largest.NETWORKS)
    command.report.settings |= {"device": device, "networks": names}
    found: list[offload_largest.Largest] = []

    def work(folder: Path) -> None:
        with command.meter([]) as tell:
            for one in offload_largest.measure(on, folder, names, lambda what: tell(what, 0)):
                found.append(one)  # one by one, so that an interrupt keeps those found so far

    def show() -> list[ResultTable]:
        command.report.findings["largest"] = [asdict(one) for one in found]
        command.report.tables += [offload_largest.table(found)] if found else []
        return []

    command.run(work, show, lambda _: ())


def _joint(command: CommandRun, batches: tuple[int, ...], sizes: dict[str, int | None]) -> None:
    known = offload_joint.QUICK if command.quick else offload_joint.SIZE
    batch = batches[0] if batches else known.batch
    size = Size(known.architecture, batch, sizes["depth"] or known.depth, sizes["width"] or known.width)
    rounds = sizes["rounds"] or (1 if command.quick else 7)
    command.report.settings |= {"batch": size.batch, "depth": size.depth, "width": size.width, "rounds": rounds}
    found: list[offload_joint.Way] = []

    def show() -> list[ResultTable]:
        command.report.findings["joint"] = [asdict(one) for one in found]
        if not found:
            return []
        over = offload_joint.ratio(found)
        if over is not None:
            _keep(command, [Goal("step", str(size), "the better one alone", offload_joint.GOAL, over, least=False)])
        return [offload_joint.table(found, size)]

    command.run(lambda _: found.extend(offload_joint.measure(size, rounds)), show, lambda _: ())


def _simulate(command: CommandRun) -> None:
    findings: dict[str, Any] = {"label": "simulated", "machines": [asdict(m) for m in offload_simulated.MACHINES]}
    command.report.findings["simulated"] = findings

    def work(folder: Path) -> None:
        for machine in offload_simulated.MACHINES:
            found = offload_simulated.capacities(machine)
            findings.setdefault("capacities", []).extend(asdict(one) for one in found)
            findings.setdefault("courses", []).extend(asdict(one) for one in batch_growth.courses(machine))
        findings["capacities"].extend(asdict(one) for one in vdnn_networks.capacities())
        findings["networks"] = [asdict(one) for one in vdnn_networks.networks()]
        findings["saved"] = [asdict(one) for one in vdnn_six.means()]
        findings["traffic"] = [asdict(one) for one in vdnn_traffic.traffic()]
        rows = offload_simulated.calibrated()
        command.report.findings["calibrated"] = {"label": "calibrated", "rows": [asdict(one) for one in rows]}

    command.report.notes.append(
        "simulated: bytes and operations from VGG's shapes, layers at the GPU's peak rates, reads as slow as writes; "
        "nothing of this was measured. calibrated: fitted to the paper's own table."
    )
    command.run(work, draw=lambda beginning: _draw(command, beginning))


def _draw(command: CommandRun, beginning: Path) -> list[Path]:
    return charts.write(beginning, offload_charts.sheets(command.report.findings))


def _keep(command: CommandRun, goals: list[Goal]) -> None:
    command.report.findings["goals"] = [goal.document() for goal in goals]
