"""Records one run of a subcommand: its temporary folder, samples, findings, and its JSON document."""

from __future__ import annotations

import platform
import shlex
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
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
_HOST = platform.node()
_ARGUMENTS = shlex.join(["fastio-bench", *sys.argv[1:]])
_WIDTH = 150  # characters of a table in a file or a pipe


@dataclass
class Report:
    """The results of one run of a subcommand.

    ``mode`` names the part of a subcommand with several parts; it goes into the file's name. ``findings`` are results
    that are not samples (doctor's answers, goals), ``tables`` its tables ("exhibits" in the document). ``interrupted``:
    the run ended early; ``broken``: because of a system error.
    """

    command: str
    folder: Path
    settings: dict[str, Any]
    mode: str = ""
    samples: list[Sample] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    findings: dict[str, Any] = field(default_factory=dict)
    tables: list[ResultTable] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    broken: bool = False
    began: datetime = field(default_factory=lambda: datetime.now(timezone.utc))

    def take(self, outcomes: Iterable[Sample | Failure]) -> Iterator[Sample | Failure]:
        """Record each outcome and pass it on. Raises KeyboardInterrupt before the next one if a signal came."""
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
        """When, where and by what, the machine, settings, samples and everything derived from them, for JSON."""
        return {
            "schema": SCHEMA,
            "command": self.command,
            "measured": {"date": self.began.isoformat(timespec="seconds"), "host": _HOST, "arguments": _ARGUMENTS},
            "machine": machine.describe(self.folder),
            "settings": self.settings,
            "interrupted": self.interrupted,
            "notes": self.notes,
            "findings": self.findings,
            "exhibits": [table.document() for table in self.tables],
            "summaries": [asdict(summary) for summary in summarise(self.samples)],
            "failures": [asdict(failure) for failure in self.failures],
            "samples": [asdict(sample) for sample in self.samples],
        }

    @property
    def origin(self) -> str:
        """When, where and by what this was measured."""
        return f"measured {self.began:%Y-%m-%d %H:%M} UTC on {_HOST} by {_ARGUMENTS}"

    @property
    def name(self) -> str:
        """The name of the run's file: command, mode, and whether --quick was given."""
        return "-".join(filter(None, (self.command, self.mode, "quick" if self.settings.get("quick") else "")))

    def write(self, out: Path) -> Path:
        """Write the document into the folder ``out``, completely or not at all. Returns its path.

        The name gets a number if another run has it (:mod:`fastio_bench.report.document_names`).
        """
        out.mkdir(parents=True, exist_ok=True)
        told = self.document()
        path = document_names.place(out, self.name, told)
        whole_files.write(path, plain_json.text(told) + "\n")
        return path


@contextmanager
def workspace(parent: Path) -> Iterator[Path]:
    """A temporary folder below ``parent``, removed at the end of the block in any case.

    Its path is absolute: children may have another working directory.
    """
    with tempfile.TemporaryDirectory(prefix="fastio-bench-", dir=parent.absolute()) as folder:
        yield Path(folder)


@contextmanager
def interruptible(report: Report) -> Iterator[None]:
    """Let signals and system errors (a full disk) end the block early. What was measured is kept."""
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
    """The consoles for tables (stdout) and for progress (stderr)."""
    width = None if sys.stdout.isatty() else _WIDTH
    return Console(width=width, markup=False, highlight=False), Console(stderr=True)  # a text may contain [dali]
