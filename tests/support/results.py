"""Makes a results folder of ``fastio-bench``: real measurements of tiny sizes, through the real Report."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import fastio
import warm_python
from fastio import dicts
from fastio_bench.checkpoint import child
from fastio_bench.checkpoint.works import Job
from fastio_bench.commands import cli
from fastio_bench.contend import command as contend_command
from fastio_bench.contend import contention
from fastio_bench.doctor import checks
from fastio_bench.harness.fresh_process import ChildError
from fastio_bench.harness.rounds import Contestant, Failure, Sample, Task, interleave
from fastio_bench.harness.run_record import Report
from fastio_bench.hybrid import job, store
from fastio_bench.machine import bandwidth_loads
from fastio_bench.model import runs
from fastio_bench.offload import timeline
from fastio_bench.offload.accuracy import Accuracy
from fastio_bench.offload.summary import Summary
from fastio_bench.offload.training_job import Moved
from fastio_bench.papers import batch_growth, offload_simulated, vdnn_networks, vdnn_six
from fastio_bench.peers import catalogue
from fastio_bench.peers.goals import Goal
from fastio_bench.report.table import SIMULATED, ResultTable
from fastio_bench.store import command as store_command
from fastio_bench.tools import tables, trace, tune
from fastio_bench.tools.rebuilt_dictionaries import Model, Rebuild, Training
from fastio_bench.tools.replays import ALL, Reached
from fastio_bench.workloads import objects
from fastio_bench.workloads.training_models import Size

MIB = 1 << 20
TOOLS = ("posix", "uring", "torch")
WORKS = ("durable write", "write", "cold read", "warm read")


def make(folder: Path) -> Path:
    """Write the documents of doctor and tune by their commands, of io, offload and tools from samples taken here."""
    out, work = folder / "results", folder / "work"
    work.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        warm_python.fork_children_of_bench(patch)
        patch.setattr(os, "sync", lambda: None)  # it would write out what all other tests wrote
        patch.setattr(checks, "LIMIT_NBYTES", 16 * MIB)
        patch.setattr(tune, "QUICK_BATCHES", (1, 2))
        for command in (["doctor"], ["tune", "--rounds", "2"]):
            dicts.forget()
            arguments = [*command, "--quick", "--dir", str(work), "--out", str(out)]
            result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
            assert result.exit_code == 0, result.output
    sweep(work).write(out)
    offloaded(work).write(out)
    chosen(work).write(out)
    imagined(work).write(out)
    return out


def others(folder: Path) -> Path:
    """Write the documents of the other commands, by running them at their smallest sizes."""
    out, work, recorded = folder / "results", folder / "work", folder / "trace.csv"
    for made in (out, work):
        made.mkdir()
    rows = [trace.Row("pt save", 1 << size, {"a": 1.0, "b": 2.0}) for size in range(12, 24)]
    recorded.write_text(trace.text(rows, []))
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        warm_python.fork_children_of_bench(patch)
        patch.setattr(os, "sync", lambda: None)  # it would write out what all other tests wrote
        _shrink(patch)
        torch.set_num_threads(1)  # two would wait for each other while contend's other processes run
        for name, *arguments in (
            ("hybrid",),
            ("hybrid-store", "--optimizer-store", "--parameters", "17MB", "--steps", "2"),
            ("peers", "--workload", "tensor-3.0625", "--work", "save", "--tool", "torch", "--tool", "fastio"),
            ("contend",),
            ("tools", "--calls", "8", "--seconds", "0", "--trace", str(recorded)),
            ("checkpoint", "--size", "1.2MB"),
            ("store", "--sizes", "1MB"),
            ("model", "--model", "toy"),
            ("weights", "--size", "1MB", "--work", "one small tensor", "--tool", "fastio"),
        ):
            command = name.partition("-")[0]
            rounds = [] if command in ("hybrid", "tools") else ["--rounds", "1"]
            arguments = [command, "--quick", "--json", "--dir", str(work), *rounds, *arguments]
            result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
            assert result.exit_code == 0, result.output
            (out / f"{name}.json").write_text(result.stdout)
    torch.set_num_threads(threads)
    return out


def _shrink(patch: pytest.MonkeyPatch) -> None:
    """Reduce sizes and counts, and run child processes' work in this process."""
    patch.setattr(contention, "WORKS", ("save",))
    patch.setattr(contention, "_ALONE", 0.02)
    patch.setattr(contention, "_LEARNING", 1)
    patch.setattr(contend_command, "QUICK_BATCH", 1)
    patch.setattr(contend_command, "QUICK_SIZE", Size("transformer", 8, 2, 64))
    patch.setattr(bandwidth_loads, "LEAST_NBYTES", 8 * MIB)
    patch.setattr(bandwidth_loads, "_CACHES", 0)
    patch.setattr(bandwidth_loads, "_WINDOW", 0.05)
    patch.setattr(store_command, "QUICK_TOTAL", 4 * MIB)
    patch.setattr(runs, "_LEARNING", 1)
    patch.setattr(runs, "tools", lambda: ([catalogue.find("torch"), catalogue.find("fastio")], ["gds: no GPU here"]))
    patch.setattr(store, "run", job._run)
    patch.setattr(child, "run", _here)


def _here(jobs: Sequence[Job]) -> Iterator[Sample | Failure]:
    """Run a checkpoint job in this process; several jobs raise ChildError."""
    if len(jobs) > 1:
        raise ChildError("no second process here")
    yield from child.done(jobs[0])


def sweep(folder: Path) -> Report:
    """A document of ``io``: each tool at two sizes, and a tool that fails."""
    report = Report("io", folder, {"rounds": 1, "device": "cpu", "tools": list(TOOLS)})
    for batch in (1, 4):
        workload = objects.one_tensor(batch)
        thing, path = workload.make(), folder / "tensor.pt"
        for work in WORKS:
            contestants = [Contestant(tool, partial(_move, thing, path, work, tool)) for tool in TOOLS]
            contestants += [Contestant("gds", _fail)] if work == WORKS[0] else []
            for _ in report.take(interleave(Task(work, workload.name, workload.nbytes), contestants, 1)):
                pass
        path.unlink()
    return report


def _move(thing: objects.Object, path: Path, work: str, tool: str) -> str:
    if work.endswith("write"):
        return fastio.save(thing, path, policy=tool, durable=work == "durable write").tool
    fastio.load(path, policy=tool)
    return tool


def _fail() -> str:
    raise fastio.ToolUnavailableError("gds", "no GPU here", "")


def offloaded(folder: Path) -> Report:
    """A document of ``offload`` from a network that really trains with its activations on the disk."""
    report = Report("offload", folder, {"model": "tiny", "policy": "all"})
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()) for _ in range(4)))
    offload = fastio.Offload(model, store=str(folder), policy="all", codec="none")
    for _ in range(3):  # predictions need earlier iterations
        with offload:
            loss = model(torch.rand(64, 256)).sum()
        loss.backward()
    document = timeline.document(offload.report())
    assert document is not None
    assert document["predicted"] is not None
    seconds = offload.report().actual_s or document["actual"]["passes"][-1][2]
    offload.close()
    moved = Moved({}, seconds / 10, 0.0, "fits", None, None, seconds)
    shared: dict[str, Any] = {"same_gradients": True, "same_losses": True, "difference": 0.0, "loss": 1.0}
    ways = [
        Summary("plain", 64, 1, seconds / 2, 1.0, 1.0, 1.0, seconds, 8 * MIB, moved=None, **shared),
        Summary("all", 64, 1, seconds, 2.0, 2.0, 2.0, seconds, MIB, moved=moved, **shared),
    ]
    report.findings["runs"] = [{"way": "all", "round": 0, "exact_memory": False, "run": {"timeline": document}}]
    report.findings["ways"] = [asdict(way) for way in ways]
    goals = [Goal("peak memory", "tiny", "plain", 10.0, 8.0, "x less"), Goal("step time", "tiny", "plain", 1.0, 2.0)]
    report.findings["goals"] = [goal.document() for goal in goals]
    return report


def chosen(folder: Path) -> Report:
    """A document of ``tools``: two trainings from a few rebuilds, a recorded trace and live calls."""
    report = Report("tools", folder, {"calls": 40})
    trainings = [
        Training(Model(name, f"a {name}", 1, 1, 1, "Fastensor, table 13", "a network"), 3)
        for name in ("transformer", "vit")
    ]
    for training in trainings:
        training.found = {4096: [_rebuild("posix")] * 3 + [_rebuild("uring")], 1 << 20: [_rebuild("uring")] * 2}
    report.tables += [*map(tables.spread, trainings), tables.reach(trainings), tables.paper()]
    alone = {"posix": 1.3, "uring": 1.5}
    reached = [Reached(work, 40, 1.02, 1.1, 1.0, 1.2, 0.9, 0.95, 1.2, alone) for work in ("pt save", ALL)]
    report.tables.append(tables.oracle("replayed", "Replayed", reached, "RECORDED", SIMULATED))
    report.tables.append(tables.oracle("live", "Live", reached, "told"))
    return report


def _rebuild(best: str) -> Rebuild:
    """A rebuild in which both tools read equally fast, and ``best`` writes in half the other's time."""
    return Rebuild(
        {tool: 1.0 if tool == best else 2.0 for tool in ("posix", "uring")}, {"posix": 1.0, "uring": 1.0}, best
    )


def imagined(folder: Path) -> Report:
    """A document of ``offload`` with one of the papers' simulated machines, and training with a codec."""
    report = Report("offload", folder, {}, "imagined")
    machine = offload_simulated.V100_SSD
    report.findings["simulated"] = {
        "label": SIMULATED,
        "machines": [asdict(machine)],
        "capacities": [asdict(one) for one in offload_simulated.capacities(machine)],
        "courses": [asdict(one) for one in batch_growth.courses(machine)],
        "networks": [asdict(one) for one in vdnn_networks.networks()],
        "saved": [asdict(one) for one in vdnn_six.means()],
    }
    trained = [Accuracy(way, (0.9, 0.8), ((2.0, 1.0), (2.5, 0.5))) for way in ("plain", "all, fp16")]
    report.findings["accuracy"] = [{**asdict(one), "mean": one.mean, "spread": one.spread} for one in trained]
    return report


def unknown(folder: Path, text: str) -> Report:
    """A document of an unknown command, with ``text`` in every text field."""
    report = Report(text, folder, {text: text})
    report.failures.append(Failure(text, text, text, 0, text))
    report.findings |= {text: [{text: text, "count": 2}], "goals": [], "nested": {text: [{"deep": [text]}]}}
    report.tables.append(ResultTable(text, text, (text, f"{text}*"), [[text, 1.5]], source=text, note=text))
    report.notes.append(text)
    report.interrupted = True
    return report
