"""``make demo``: saves, loads and verifies a state dict of BERT-large's size.

The exit status is non-zero on failure.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import fastio
from fastio.inspect.machine_checks import tool_rows
from fastio_bench.doctor import checks
from fastio_bench.harness import fresh_process, page_cache
from fastio_bench.harness.progress_meter import Meter
from fastio_bench.harness.run_record import Report, consoles, workspace
from fastio_bench.harness.stats import summarise
from fastio_bench.peers import catalogue, compare
from fastio_bench.report import findings_tables, summary_tables, terminal
from fastio_bench.workloads import objects

ROUNDS = 3
LEARNING_ROUNDS = 2
RACE_SECONDS = 90.0  # on slow memory (300 MB/s) or a slow disk, fewer rounds fit into the demo's two minutes
SHOWN = ("torch", "fastio")


class WrongError(Exception):
    """A step of the demo gave a wrong result."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What the steps share: a temporary folder, the object to save, the consoles for output and progress."""

    folder: Path
    workload: objects.Workload
    thing: dict[str, torch.Tensor]
    out: Console
    progress: Console

    @property
    def path(self) -> Path:
        """The file that fastio saves and that later steps read."""
        return self.folder / f"{self.workload.name}.pt"


def show_machine(stage: Stage) -> None:
    """Print the machine and the tools."""
    answers = {"machine": checks.system(stage.folder), "tools": tool_rows()}
    for table in findings_tables.tables(answers):
        stage.out.print(terminal.fitted(table))


def race(stage: Stage) -> None:
    """Time saves and loads by torch and fastio in interleaved rounds, loads in fresh processes."""
    report = Report("demo", stage.folder, {})
    with workspace(stage.folder) as folder:
        plan = compare.Comparison(
            folder,
            ROUNDS,
            [replace(stage.workload, make=lambda: stage.thing)],
            [catalogue.find(name) for name in SHOWN],
            learning=LEARNING_ROUNDS,
            memory=False,
            ring=False,
            lean=True,
            seconds=RACE_SECONDS,
        )
        with Meter(stage.progress, plan.weights()) as meter, fresh_process.paired():
            plan.tell = meter.tell
            for _ in report.take(plan.run()):
                pass
    failures = [failure for failure in report.failures if failure.tool in ("torch", "fastio")]
    works = {work: work for work in compare.WORKS}
    stage.out.print(terminal.fitted(summary_tables.comparison(stage.workload.label, summarise(report.samples), works)))
    if report.failures:
        stage.out.print(terminal.fitted(summary_tables.failures(report.failures)))
    left_out = [f"{work} {rounds}" for work, rounds in _rounds(report).items() if rounds < ROUNDS]
    if left_out:
        report.notes.append(f"rounds, since {ROUNDS} of all would take too long on this machine: {', '.join(left_out)}")
    report.tell_again()
    for note in report.notes:
        stage.out.print(note)
    if failures:
        raise WrongError(f"{failures[0].tool}, {failures[0].work}: {failures[0].reason}")


def _rounds(report: Report) -> dict[str, int]:
    """The number of rounds, by work."""
    return {sample.work: sample.round + 1 for sample in report.samples}


def read_with_torch(stage: Stage) -> None:
    """Load fastio's file with plain torch.load and compare every bit."""
    result = fastio.save(stage.thing, stage.path)
    stage.out.print(f"saved by {catalogue.way(result)}: {result.reason}")
    different = _different(torch.load(stage.path), stage.thing)
    if different:
        raise WrongError(f"torch.load({stage.path.name!r}) gives other bits for {different[0]}")
    stage.out.print(f"torch.load of fastio's file: all {len(stage.thing)} tensors equal, bit by bit")


def flip_a_byte(stage: Stage) -> None:
    """Flip one byte of the file: torch loads it, fastio raises and names the record."""
    offset = stage.path.stat().st_size // 2
    with open(stage.path, "r+b") as stream:
        stream.seek(offset)
        (byte,) = stream.read(1)
        stream.seek(offset)
        stream.write(bytes([byte ^ 1]))
    different = _different(torch.load(stage.path), stage.thing)
    stage.out.print(
        f"byte {offset:,} flipped. torch.load accepts the file, with a wrong value in {', '.join(different)}"
    )
    try:
        fastio.load(stage.path)
    except fastio.CorruptFileError as error:
        stage.out.print(f"fastio.load refuses it: {error.record}: {error.problem}")
    else:
        raise WrongError("fastio.load accepted a file with a wrong byte")
    if not different:
        raise WrongError("the flipped byte changed no tensor, so this showed nothing")


def show_learned(stage: Stage) -> None:
    """Print what the dictionaries learned about saving this file, and about loading it cold and warm."""
    stage.out.print(str(fastio.explain(stage.path, op="save")))
    for bring in (page_cache.drop, page_cache.warm):
        bring(stage.path)
        stage.out.print()
        stage.out.print(str(fastio.explain(stage.path, op="load")))


STEPS: tuple[tuple[str, Callable[[Stage], Any]], ...] = (
    ("What is here", show_machine),
    ("torch and fastio, side by side", race),
    ("fastio's file is torch's", read_with_torch),
    ("A wrong byte", flip_a_byte),
    ("What the dictionaries learned", show_learned),
)


def _different(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    """The names of tensors that differ in any bit or are missing on one side."""
    names = sorted(one.keys() | other.keys())
    return [name for name in names if name not in one or name not in other or not _same(one[name], other[name])]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
    )


def main(workload: objects.Workload) -> int:
    """Run every step in the current folder. Returns the exit status."""
    start = time.monotonic()
    out, progress = consoles()
    with workspace(Path.cwd()) as folder:
        with progress.status(f"making {workload.nbytes / 1e9:.2f} GB of random values ({workload.label})"):
            thing = objects.tensors(workload.make())
        stage = Stage(folder, workload, thing, out, progress)
        for title, step in STEPS:
            out.rule(title)
            try:
                step(stage)
            except (WrongError, fastio.FastIOError, OSError) as error:
                out.print(f"wrong: {error}", style="bold red")
                return 1
    out.rule(f"all as it should be, after {time.monotonic() - start:.0f} seconds")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(objects.bert_large()))
    except KeyboardInterrupt:
        sys.exit("interrupted; nothing was left behind")
