"""Every tool at mixed sizes beside each other, as ``fastio-bench tools`` compares them live and records them."""

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
RECORDED = [*LIVE, "npy cold load", "npy warm load"]  # in which DALI takes part
CALLS = 4200  # of a recording

_QUICK_LARGEST = 32 << 20
_ROOM, _LINE = 4096, 160  # bytes of a trace's remarks, and of a line at most: they are taken beforehand
_FILES = 3  # of one size that lie on the disk at once: one of each format, and the one being saved


def record(conduct: CommandRun, target: Path, calls: int) -> None:
    """Time every tool at that many calls of mixed sizes, and write the trace."""
    compared = comparison(conduct, RECORDED, calls, auto=False)
    conduct.report.mode = "recording"
    conduct.report.settings |= {"calls": calls}
    rows: list[Row] = []

    def work(folder: Path) -> None:
        weights = compared.weights()
        announce(weights, compared)
        with conduct.meter(weights) as compared.tell:
            take(conduct, rows, compared.run(folder))

    def show() -> list[str]:
        """What was measured is a trace, whatever ended it: where it cannot be written it is printed."""
        conduct.report.notes += host.remark(compared.again)
        conduct.report.findings["recorded"] = [row._asdict() for row in rows]
        if not rows:
            return []
        text = trace.text(rows, trace.remarks(conduct.parent, rows))
        try:
            keep(text.encode())
        except OSError as error:
            conduct.report.interrupted = conduct.report.broken = True
            conduct.report.notes.append(f"--record {target}: {describe(error)}; its lines are printed, or in the JSON")
            if not conduct.as_json:
                click.echo(text, nl=False)
        else:
            conduct.report.notes.append(f"written: {target}, {len(rows):,} lines")
        return []

    with writable.file(target, "--record", _ROOM + calls * _LINE) as keep:
        conduct.run(work, show, draw=lambda _: [])


def comparison(conduct: CommandRun, works: Sequence[str], calls: int, auto: bool) -> live.Comparison:
    """What is compared, at sizes that the disk holds; a note says where that is less than asked."""
    asked = _QUICK_LARGEST if conduct.quick else live.LARGEST
    largest = max(live.SMALLEST, min(asked, room.most(conduct.parent, _FILES)))
    if largest < asked:
        sizes = f"{largest / MIB:,.4g} MiB instead of {asked / MIB:,.4g} MiB"
        conduct.report.notes.append(f"tools are compared up to {sizes}, {room.WANT}")
    return live.Comparison(works, live.sizes(-(-calls // len(works)), largest), auto)


def announce(weights: Sequence[float], compared: live.Comparison, beside: int = 0) -> None:
    """Say how long it takes and how much disk, of which so many bytes ``beside`` what is compared."""
    click.echo(forecast(sum(weights), _FILES * max(compared.sizes) + beside), err=True)


def take(conduct: CommandRun, rows: list[Row], outcomes: Iterable[Row | Failure]) -> None:
    """Keep each outcome as it comes."""
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            conduct.report.failures.append(outcome)
            conduct.report.notes.append(f"{outcome.tool} failed at {outcome.workload}: {outcome.reason}")
        else:
            rows.append(outcome)
