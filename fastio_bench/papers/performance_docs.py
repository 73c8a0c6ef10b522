"""``make bench-docs``: writes all tables of a results folder, our figures beside the papers'.

The same results give the same bytes: nothing depends on the clock, the machine that writes it or the folder.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill

from fastio_bench.harness import whole_files
from fastio_bench.machine.machine_facts import facts, setting
from fastio_bench.papers import answers, beside_sizes, beside_training, figures, page
from fastio_bench.report import document_tables, markdown
from fastio_bench.report.documents import Document, DocumentError, checked, read_folder
from fastio_bench.report.table import PAPER, ResultTable

Citation = tuple[str, str, int]
_WIDTH = 120
_CITED = re.compile(
    r"(?P<paper>Fastensor|FlashNeuron|vDNN|MemFerry)"
    r"|(?P<kind>table|figure|section)s?"
    r"|(?P<first>\d+)(?:\s*(?:-|\u2013|to)\s*(?P<last>\d+))?"
)


_OPENING = (
    "Written by `make bench-docs` from the JSON that `fastio-bench` leaves; not edited by hand. Every table says where "
    "its figures come from: *measured here*, *from the paper* (as printed there, on the paper's machine), *simulated* "
    "(computed from a model of the hardware) or *calibrated* (fitted to the paper's own figures); where a table has "
    "several of these side by side, each row says it. The papers moved "
    "tensors between SSDs and GPU memory on machines that are not this one: compare shapes and ratios, not speeds. MB "
    "are 10^6 bytes, MiB 2^20. Bandwidths are medians of interleaved rounds."
)


@dataclass(frozen=True)
class Topic:
    """A chapter: the papers' tables that it answers (in the form of a source), and the commands whose tables it has."""

    title: str
    answers: str
    commands: tuple[str, ...] = ()


TOPICS = (
    Topic("Beside what one would use instead", "", ("peers",)),
    Topic("Reading what the page cache holds", "Fastensor, table 2", ("io",)),
    Topic("Reading from the disk", "Fastensor, table 3", ("io",)),
    Topic("Writing", "Fastensor, table 4", ("io",)),
    Topic("What it costs in processor time", "Fastensor, tables 5-6", ("io",)),
    Topic("Models", "Fastensor, table 9", ("model",)),
    Topic("Checkpoints", "", ("checkpoint",)),
    Topic("Which tool is the best, and how often", "Fastensor, tables 13-14", ("tools", "tune")),
    Topic("Training with activations offloaded", "Fastensor, tables 1, 8, 10-11; FlashNeuron, figure 8", ("offload",)),
    Topic("Deeper networks, larger batches", "Fastensor, table 12; FlashNeuron, table 3", ("offload",)),
    Topic("What vDNN keeps and moves", "vDNN, figures 11-15", ("offload",)),
    Topic("The store of activations, beside the disk's limit", "", ("store",)),
    Topic("While others take the memory's bandwidth", "FlashNeuron, figures 12-13, table 4", ("contend",)),
    Topic("Parameters and gradients in host memory", "MemFerry, figures 9-13", ("hybrid",)),
    Topic("The machine and its disk", "", ("doctor",)),
)


def citations(source: str) -> set[Citation]:
    """Parse the tables and figures that a source names: ``Fastensor, tables 2-4 and 9; vDNN, figure 11``."""
    found: set[Citation] = set()
    paper = kind = ""
    for match in _CITED.finditer(source):
        paper, kind = match["paper"] or paper, match["kind"] or kind
        if match["paper"]:
            kind = ""
        elif paper and kind in ("table", "figure") and not match["kind"]:
            first = int(match["first"])
            found |= {(paper, kind, number) for number in range(first, int(match["last"] or first) + 1)}
    return found


def render(documents: Sequence[Document]) -> str:
    """The whole document."""
    placed: dict[str, list[tuple[Document | None, ResultTable]]] = {}
    for question in (*beside_training.QUESTIONS, *beside_sizes.QUESTIONS):
        for table in question.tables(documents):
            placed.setdefault(_place("", table), []).append((None, table))
    known, present = figures.tables(), set[tuple[str, str]]()
    repeated = [citations(table.source) for table in known]
    for document in documents:
        for table in checked(document, document_tables.tables):
            if table.origin == PAPER and citations(table.source) in repeated:
                continue  # a command's copy of a paper's table, which is in the document already
            if table.name == "machine":
                continue  # doctor's answers have paths in them; the facts are at the top
            present.add((document.command, table.name))
            placed.setdefault(_place(document.command, table), []).append((document, table))
    pieces = [*_opening(documents)]
    for topic in TOPICS:
        asked = citations(topic.answers)
        theirs = [table for table in known if citations(table.source) & asked]
        commands = {document.command for document in documents}
        absent = [command for command in topic.commands if command not in commands]
        pieces += _chapter(topic.title, absent, placed.pop(topic.title, []), theirs, present)
    for title, found in placed.items():
        pieces += _chapter(title, (), found, [], present)
    pieces += _runs(documents)
    return "\n\n".join(pieces) + "\n"


def _place(command: str, table: ResultTable) -> str:
    """The chapter of a table: the one that answers its source, or its command's, or a new one."""
    cited = citations(table.source)
    for topic in TOPICS:
        if cited & citations(topic.answers):
            return topic.title
    return next((topic.title for topic in TOPICS if command in topic.commands), command)


def _opening(documents: Sequence[Document]) -> Iterator[str]:
    yield "# Performance"
    yield fill(_OPENING, _WIDTH)
    yield fill(f"The papers: {'; '.join(figures.titles())}.", _WIDTH)
    machine = facts(documents[0].machine)
    rows = [f"| {name} | {markdown.escape(text)} |" for name, text in machine.items() if text]
    yield "\n".join(["| machine | |", "|---|---|", *rows])


def _chapter(
    title: str,
    commands: Sequence[str],
    ours: Sequence[tuple[Document | None, ResultTable]],
    theirs: Sequence[ResultTable],
    present: Set[tuple[str, str]],
) -> Iterator[str]:
    """Our tables, then theirs. ``commands`` would measure more and are not in these results.

    Tables with both come first and belong to no document. If a command has several documents, each of their tables
    names its document. Each of theirs is followed by the answers that are not ``present``.
    """
    if not ours and not theirs and not commands:
        return
    yield f"## {markdown.escape(title)}"
    runs = Counter(command for command, _ in {(one.command, one.path) for one, _ in ours if one is not None})
    for document, table in ours:
        if document is None:
            yield markdown.table(table)
            continue
        if runs[document.command] > 1:
            table = replace(table, title=f"{table.title}: {document.title}")
        yield markdown.table(table, document.command if table.origin != PAPER else "")
    said = frozenset(() if ours else commands)
    if said:
        yield f"Not in these results: `fastio-bench {commands[0]} --out DIR` measures it."
    for table in theirs:
        yield markdown.table(table)
        lines = " ".join(answers.missing(table, present, said))
        yield from [lines] if lines else []


def _runs(documents: Sequence[Document]) -> Iterator[str]:
    """The settings and the notes of each run."""
    yield "## How it was measured"
    for document in documents:
        known = {key.replace("_", " "): setting(value) for key, value in document.settings.items()}
        settings = "; ".join(f"{name}: {value}" for name, value in known.items() if value)
        lines = [f"**{markdown.escape(document.title)}**: {markdown.escape(settings) or 'no settings'}"]
        lines[0] += "; the run was interrupted" if document.interrupted else ""
        lines += [""] if document.notes or document.machine != documents[0].machine else []
        lines += [f"- {markdown.escape(note)}" for note in document.notes]
        other = {n: t for n, t in facts(document.machine).items() if facts(documents[0].machine).get(n) != t}
        lines += [f"- {name.lower()}: {markdown.escape(told)}" for name, told in other.items()]
        yield "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Write the document (second argument) from a results folder (first), and ``papers-figures.md`` beside it."""
    results, output = map(Path, arguments)
    try:
        documents = read_folder(results)
        texts = {output: render(documents), output.with_name("papers-figures.md"): page.figures_page(documents)}
    except DocumentError as error:
        sys.exit(str(error))
    output.parent.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        whole_files.write(path, text)


if __name__ == "__main__":
    main(sys.argv[1:])
