"""Runs a subcommand: temporary folder, progress, output and exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path

import click

from fastio.runtime.installation import pip_install
from fastio_bench.harness import plain_json, writable
from fastio_bench.harness.interrupts import STATUS, undisturbed
from fastio_bench.harness.progress_meter import Meter
from fastio_bench.harness.rounds import describe
from fastio_bench.harness.run_record import Report, consoles, interruptible, workspace
from fastio_bench.harness.stats import summarise
from fastio_bench.machine.others import Others
from fastio_bench.report import findings_tables, plots, summary_tables, terminal
from fastio_bench.report.table import CALIBRATED, MEASURED, ResultTable


class CommandRun:
    """One run of a subcommand, from its common options to its exit status."""

    def __init__(self, command: str, parent: Path, quick: bool, out: Path | None, as_json: bool) -> None:
        self.parent, self.quick, self.out, self.as_json = parent, quick, out, as_json
        self.report = Report(command, parent, {"quick": quick})
        self._tables, self._progress = consoles()

    @contextmanager
    def meter(self, weights: Sequence[float]) -> Iterator[Callable[[str, float], None]]:
        """Show progress with the time left. Yields ``tell(what, weight)``, to call before and after each step."""
        with Meter(self._progress, weights) as meter:
            yield meter.tell

    def show(self, piece: ResultTable | str) -> None:
        """Print a table or a line, unless JSON is asked for or the table has no rows."""
        if self.as_json:
            return
        if isinstance(piece, str):
            self._tables.print(piece)
        elif piece.rows:
            self._tables.print(terminal.render(piece))

    def run(
        self,
        work: Callable[[Path], None],
        tables: Callable[[], Iterable[ResultTable | str]] = tuple,
        draw: Callable[[Path], Iterable[Path]] | None = None,
    ) -> None:
        """Do the work in a temporary folder, then show its results, also when Ctrl-C or the system ended it early.

        Shown are what ``tables`` returns, the tables of known findings, the report's own tables, failures and notes.
        ``draw`` writes other plots than bars of bandwidth. Its argument is the document's path without the suffix: the
        names of the plots begin with it. Folders that cannot be used are an error before the work begins. Results that
        cannot be written are an error after they are shown.
        """
        writable.folder(self.parent, "--dir")
        if self.out is not None:
            writable.folder(self.out, "--out")
        unwritten, before = "", set[Path]()
        others = Others()
        with undisturbed():
            with workspace(self.parent) as folder, interruptible(self.report):
                work(folder)
            self.report.tell_again()
            shown = [*tables()]  # this may add to the report's tables
            found = [piece for piece in (*shown, *self.report.tables) if isinstance(piece, ResultTable) and piece.rows]
            if self.report.samples or any(table.origin in (MEASURED, CALIBRATED) for table in found):
                self.report.notes += others.remark()
            try:
                before = set() if self.out is None else {*self.out.glob("*.json")}
                written = None if self.out is None else self.report.write(self.out)
            except OSError as error:
                unwritten = describe(error)
        known = findings_tables.known(self.report.findings)
        failures = [summary_tables.failures(self.report.failures)]
        for piece in (*shown, *known, *self.report.tables, *failures, *self.report.notes, self.report.origin):
            self.show(piece)
        if self.as_json:
            click.echo(plain_json.text(self.report.document()))
        if unwritten:
            raise click.ClickException(
                f"--out {self.out}: {unwritten}; nothing was kept but what is shown: make room there"
            )
        if written is not None:
            click.echo(f"written: {written}{self._instead(written, before)}", err=True)
            self._plot(written.with_suffix(""), draw or self._bars)
        if self.report.interrupted:
            sys.exit(1 if self.report.broken else STATUS)

    def _instead(self, written: Path, before: Set[Path]) -> str:
        """The remark on a file name that was already in use; empty if it was not."""
        if written in before:
            return ", in the place of an earlier run with the same settings"
        if written.stem != self.report.name:
            return f"; {self.report.name}.json is another run's, and stays"
        return ""

    def _bars(self, beginning: Path) -> list[Path]:
        return plots.draw(beginning, summarise(self.report.samples))

    def _plot(self, beginning: Path, draw: Callable[[Path], Iterable[Path]]) -> None:
        try:
            with plots.signed(self.report.origin):
                for path in draw(beginning):
                    click.echo(f"written: {path}", err=True)
        except ImportError as error:
            click.echo(f"no plots: {error}; {pip_install('bench', 'matplotlib')}", err=True)
        except OSError as error:
            raise click.ClickException(f"--out {self.out}: no plots: {describe(error)}; make room there") from error


def forecast(seconds: float, disk: int) -> str:
    """The announcement of how long a run takes and how much disk it needs."""
    takes = f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{max(seconds, 1):.0f} seconds"
    room = f"{disk / (1 << 30):.1f} GiB" if disk >= 1 << 29 else f"{disk / (1 << 20):.0f} MiB"
    return f"about {takes}, at most {room} of disk"
