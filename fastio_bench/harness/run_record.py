"""One run of a subcommand: where its files lie, what it measured, what is kept of it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from fastio_bench.harness import plain_json, whole_files
from fastio_bench.harness.interrupts import check, heeded
from fastio_bench.harness.rounds import Failure, Sample, describe
from fastio_bench.harness.stats import summarise
from fastio_bench.machine import host, machine
from fastio_bench.report import document_names
from fastio_bench.report.table import ResultTable

SCHEMA = 1
_UNTIL = "what is shown is what was measured until then"
_WIDTH = 150  # of tables that go to a file or a pipe


@dataclass
class Report:
    """What one run of a subcommand found.

    ``mode`` is what of the subcommand was run, where it does several things: a word for the file's name. ``findings``
    are what is no sample (doctor's answers, goals), ``exhibits`` its tables. ``interrupted``: it ended early, of an
    error of the system where it is also ``broken``.
    """

    command: str
    folder: Path
    settings: dict[str, Any]
    mode: str = ""
    samples: list[Sample] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    findings: dict[str, Any] = field(default_factory=dict)
    exhibits: list[ResultTable] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    broken: bool = False

    def take(self, outcomes: Iterable[Sample | Failure]) -> Iterator[Sample | Failure]:
        """Keep each outcome as it comes, and pass it on; what comes after an interrupt is none."""
        for outcome in outcomes:
            check()
            if isinstance(outcome, Sample):
                self.samples.append(outcome)
            else:
                self.failures.append(outcome)
            yield outcome

    def tell_again(self) -> None:
        """Add a note on the samples that were timed again."""
        self.notes += host.remark(sum(sample.again for sample in self.samples))

    def document(self) -> dict[str, Any]:
        """Machine, versions, settings, every sample and what follows from them, for JSON."""
        return {
            "schema": SCHEMA,
            "command": self.command,
            "machine": machine.describe(self.folder),
            "settings": self.settings,
            "interrupted": self.interrupted,
            "notes": self.notes,
            "findings": self.findings,
            "exhibits": [exhibit.document() for exhibit in self.exhibits],
            "summaries": [asdict(summary) for summary in summarise(self.samples)],
            "failures": [asdict(failure) for failure in self.failures],
            "samples": [asdict(sample) for sample in self.samples],
        }

    @property
    def name(self) -> str:
        """The name of its file: the command, what of it was run, and whether quickly."""
        return "-".join(filter(None, (self.command, self.mode, "quick" if self.settings.get("quick") else "")))

    def write(self, out: Path) -> Path:
        """Write the document into the folder ``out`` under its name: all of it, or what was there stays.

        With a number where another run has that name (:mod:`fastio_bench.report.document_names`).
        """
        out.mkdir(parents=True, exist_ok=True)
        told = self.document()
        path = document_names.place(out, self.name, told)
        whole_files.write(path, plain_json.text(told) + "\n")
        return path


@contextmanager
def workspace(parent: Path) -> Iterator[Path]:
    """A folder of its own below ``parent`` for files to measure with, gone afterwards however the run ends.

    Its path is absolute: children may look for it from elsewhere.
    """
    with tempfile.TemporaryDirectory(prefix="fastio-bench-", dir=parent.absolute()) as folder:
        yield Path(folder)


@contextmanager
def interruptible(report: Report) -> Iterator[None]:
    """Ctrl-C and its like end the block early, as a full disk does; what was measured stays."""
    try:
        with heeded():
            yield
    except KeyboardInterrupt:
        report.interrupted = True
        report.notes.append(f"interrupted: {_UNTIL}")
    except OSError as error:
        report.interrupted = report.broken = True
        report.notes.append(f"ended by {describe(error)}: {_UNTIL}")


def consoles() -> tuple[Console, Console]:
    """Where tables go (stdout) and where progress goes (stderr)."""
    width = None if sys.stdout.isatty() else _WIDTH
    return Console(width=width, markup=False, highlight=False), Console(stderr=True)  # [dali] in a text is no markup
