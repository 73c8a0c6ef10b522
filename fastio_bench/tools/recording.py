"""Runs the live comparison of ``fastio-bench tools``, and records it as a trace."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from fastio_bench.harness import room, writable
from fastio_bench.harness.command_run import CommandRun, forecast
from fastio_bench.harness.rounds import Failure, describe
from fastio_bench.machine import host
from fastio_bench.tools import live, trace
from fastio_bench.tools.trace import Row
from fastio_bench.workloads.objects import MIB

LIVE = [f"pt {work}" for work in trace.WORKS]
RECORDED = [*LIVE, "npy cold load", "npy warm load"]  # DALI takes part in these

_QUICK_LARGEST = 32 << 20
_ROOM, _LINE = 4096, 160  # bytes of a trace's remarks, and of a line, at most: reserved beforehand
_FILES = 3  # of one size on the disk at once: one of each format, and the one being saved


def record(command: CommandRun, target: Path, calls: int) -> None:
    """Time every tool at ``calls`` calls of mixed sizes, and write the trace."""
    compared = comparison(command, RECORDED, calls, auto=False)
    command.report.mode = "recording"
    command.report.settings |= {"calls": calls}
    rows: list[Row] = []

    def work(folder: Path) -> None:
        weights = compared.weights()
        announce(weights, compared)
        with command.meter(weights) as compared.tell:
            take(command, rows, compared.run(folder))

    def show() -> list[str]:
        """Write the trace, also of an interrupted run. If that fails, print it."""
        command.report.notes += host.remark(compared.again)
        command.report.findings["recorded"] = [row._asdict() for row in rows]
        if not rows:
            return []
        text = trace.text(rows, trace.remarks(command.parent, rows))
        try:
            keep(text.encode())
        except OSError as error:
            command.report.interrupted = command.report.broken = True
            command.report.notes.append(f"--record {target}: {describe(error)}; its lines are printed, or in the JSON")
            if not command.as_json:
                click.echo(text, nl=False)
        else:
            command.report.notes.append(f"written: {target}, {len(rows):,} lines")
        return []

    with writable.file(target, "--record", _ROOM + calls * _LINE) as keep:
        command.run(work, show, draw=lambda _: [])


def comparison(command: CommandRun, works: Sequence[str], calls: int, auto: bool) -> live.Comparison:
    """The comparison, at sizes that fit. Adds a note if they are smaller than asked."""
    asked = _QUICK_LARGEST if command.quick else live.LARGEST
    largest = max(live.SMALLEST, min(asked, room.most(command.parent, _FILES)))
    if largest < asked:
        sizes = f"{largest / MIB:,.4g} MiB instead of {asked / MIB:,.4g} MiB"
        command.report.notes.append(f"tools are compared up to {sizes}, {room.WANT}")
    return live.Comparison(works, live.sizes(-(-calls // len(works)), largest), auto)


def announce(weights: Sequence[float], compared: live.Comparison, beside: int = 0) -> None:
    """Announce how long it takes and how much disk it needs, with ``beside`` further bytes."""
    click.echo(forecast(sum(weights), _FILES * max(compared.sizes) + beside), err=True)


def take(command: CommandRun, rows: list[Row], outcomes: Iterable[Row | Failure]) -> None:
    """Record each outcome as soon as it is known."""
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            command.report.failures.append(outcome)
            command.report.notes.append(f"{outcome.tool} failed at {outcome.workload}: {outcome.reason}")
        else:
            rows.append(outcome)
