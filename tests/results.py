"""A results folder as ``fastio-bench`` leaves it: real measurements of tiny sizes, through the real Report."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import fastio
from fastio import dicts
from fastio.bench import doctor, offload_timeline, tune
from fastio.bench import workloads as objects
from fastio.bench.commands import cli
from fastio.bench.exhibit import Exhibit
from fastio.bench.goals import Goal
from fastio.bench.offload_summary import Summary
from fastio.bench.report import Report
from fastio.bench.rounds import Contestant, Failure, Task, interleave
from fastio.bench.training_job import Moved

MIB = 1 << 20
TOOLS = ("posix", "uring", "torch")
WORKS = ("durable write", "write", "cold read", "warm read")


def make(folder: Path) -> Path:
    """Documents of doctor and tune by the commands themselves, of io and offload from samples taken here."""
    out, work = folder / "results", folder / "work"
    work.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "LIMIT_NBYTES", 16 * MIB)
        patch.setattr(tune, "QUICK_BATCHES", (1, 2))
        for command in (["doctor"], ["tune", "--rounds", "2"]):
            dicts.forget()
            arguments = [*command, "--quick", "--dir", str(work), "--out", str(out)]
            result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
            assert result.exit_code == 0, result.output
    sweep(work).write(out)
    offloaded(work).write(out)
    return out


def sweep(folder: Path) -> Report:
    """What ``io`` keeps: each tool at two sizes, and a tool that fails."""
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
    """What ``offload`` keeps of training, from a network that really trains with its activations on the disk."""
    report = Report("offload", folder, {"model": "tiny", "policy": "all"})
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()) for _ in range(4)))
    offload = fastio.Offload(model, store=str(folder), policy="all", codec="none")
    for _ in range(3):  # what is predicted follows from the iterations before
        with offload:
            loss = model(torch.rand(64, 256)).sum()
        loss.backward()
    told = offload_timeline.document(offload.report())
    assert told is not None
    assert told["predicted"] is not None
    seconds = offload.report().actual_s or told["actual"]["passes"][-1][2]
    offload.close()
    moved = Moved({}, seconds / 10, 0.0, "fits", None, None, seconds)
    shared: dict[str, Any] = {"same_gradients": True, "same_losses": True, "difference": 0.0, "loss": 1.0}
    ways = [
        Summary("plain", 1, seconds / 2, 1.0, 1.0, 1.0, seconds, 8 * MIB, moved=None, **shared),
        Summary("all", 1, seconds, 2.0, 2.0, 2.0, seconds, MIB, moved=moved, **shared),
    ]
    report.findings["runs"] = [{"way": "all", "round": 0, "exact_memory": False, "run": {"timeline": told}}]
    report.findings["ways"] = [asdict(way) for way in ways]
    goals = [Goal("peak memory", "tiny", "plain", 10.0, 8.0, "x less"), Goal("step time", "tiny", "plain", 1.0, 2.0)]
    report.findings["goals"] = [goal.document() for goal in goals]
    return report


def unknown(folder: Path, text: str) -> Report:
    """A command that nobody has heard of, with ``text`` wherever a document has words."""
    report = Report(text, folder, {text: text})
    report.failures.append(Failure(text, text, text, 0, text))
    report.findings |= {text: [{text: text, "count": 2}], "goals": [], "nested": {text: [{"deep": [text]}]}}
    report.exhibits.append(Exhibit(text, text, (text, f"{text}*"), [[text, 1.5]], source=text, note=text))
    report.notes.append(text)
    report.interrupted = True
    return report
