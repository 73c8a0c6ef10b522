"""The page of ``fastio-bench papers``: the papers' figures, ours, the ratio, and by what. Pure.

docs/papers.md has the same rows without figures: :func:`markdown`; docs/papers-figures.md has a run's figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import fill

from fastio_bench.machine.machine_facts import facts
from fastio_bench.papers.beside import ORIGIN
from fastio_bench.papers.rows import fastensor, flashneuron, memferry, vdnn
from fastio_bench.papers.rows.row import Row
from fastio_bench.report.documents import Document, checked
from fastio_bench.report.markdown import escape, plain
from fastio_bench.report.table import ResultTable

_COLUMNS = ("paper", "of it", "what", "theirs*", "ours*", "ours/theirs*", "by", "command, or why not")
_NOTE = (
    "theirs: on the papers' machines, between SSDs and GPUs, so compare ratios; model: computed from shapes and the "
    "papers' machines, nothing was measured; simulated device: run here on a device whose times are modelled; "
    "measured: here, with networks and sizes that fit"
)
_DATED = (
    "Dated figures are of that day, those with --quick of few rounds: [Papers](papers.md) says by which command, and "
    "what differs."
)
_WIDTH = 120


def rows() -> list[Row]:
    """Every table and figure of the four papers."""
    return [*fastensor.rows(), *flashneuron.rows(), *vdnn.rows(), *memferry.rows()]


def table(documents: Sequence[Document], folder: Path | None = None) -> ResultTable:
    """The page. Figures that are measured come from the newest document that has them.

    The note says which documents of ``folder``, if it is given, were read. Raises DocumentError for a damaged document.
    """
    return ResultTable(
        "papers",
        "The papers' figures, and ours",
        _COLUMNS,
        [row.cells(documents) for row in rows()],
        ORIGIN,
        note=_NOTE if folder is None else f"{_NOTE}\n{_read(documents, folder)}",
    )


def _read(documents: Sequence[Document], folder: Path) -> str:
    """Which documents of the folder were read, and which of them have no figure of any row."""
    if not documents:
        return f"No document (*.json) in {folder}: rows that need one name the command; give it --out {folder}."
    commands = ", ".join(dict.fromkeys(document.command for document in documents))
    read = f"{len(documents)} document{'s'[: len(documents) > 1]} read from {folder}, of {commands}."
    measured = [row.stored for row in rows() if row.stored is not None]
    useless = [one for one in documents if all(checked(one, stored) is None for stored in measured)]
    if not useless:
        return read
    names = ", ".join(f"{one.path.name} ({one.command})" for one in useless)
    return f"{read} No row has a figure from {names}: see the commands in the rows."


def markdown() -> str:
    """What answers each figure, or why none does: the table of docs/papers.md."""
    lines = ["| paper | of it | what | by | command, or why not |", "|---|---|---|---|---|"]
    for row in rows():
        told = "; ".join(filter(None, (f"`{row.command}`" if row.command else "", row.reason)))
        lines.append(f"| {row.paper} | {row.place} | {row.what} | {row.way} | {told or '-'} |")
    return "\n".join(lines)


def figures_page(documents: Sequence[Document]) -> str:
    """The page as Markdown, without the last column, and the machine. Raises DocumentError for a damaged document."""
    whole = table(documents)
    shown = replace(whole, columns=whole.columns[:-1], rows=[row[:-1] for row in whole.rows])
    lines = [
        "# The papers' figures, and ours",
        fill(f"Written by `make bench-docs`; not edited by hand. {_NOTE[0].upper()}{_NOTE[1:]}. {_DATED}", _WIDTH),
    ]
    for machine in dict.fromkeys(_machine(document) for document in documents):
        lines.append(fill(machine, _WIDTH))
    return "\n\n".join([*lines, plain(shown)]) + "\n"


def _machine(document: Document) -> str:
    """Its processor, memory and GPU."""
    told = facts(document.machine)
    return f"The machine: {escape(told['Processor'])}; memory: {told['Memory']}; GPU: {escape(told['GPU'])}."
