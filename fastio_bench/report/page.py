"""Renders a results folder as one HTML page: self-contained, no script, light and dark, for desk and phone.

The layout is in ``page.html.jinja`` and ``page.css``. What stands on the page is collected here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastio_bench.machine.machine_facts import facts, setting
from fastio_bench.peers import agreement, verdict
from fastio_bench.report import cells, document_tables, page_charts, sample_charts, summary_tables
from fastio_bench.report.documents import Document, checked
from fastio_bench.report.table import CALIBRATED, MEASURED, PAPER, SIMULATED, Cell, ResultTable

TITLE = "What fastio measured here"
_HERE = Path(__file__).parent
_MOST_TEXT = 10_000  # characters of a finding that no table shows
_WORDS, _PROSE = 28, 60  # characters from which on a cell gets room to wrap
_FEW = 3  # columns: so few need no room kept for words
_VERDICTS = ("met", "missed")
_ORIGINS = {MEASURED: "measured", PAPER: "paper", SIMULATED: "simulated", CALIBRATED: "calibrated"}
_ABOUT = {
    "doctor": "What is here and what is not, the way that bytes really take, and the limit of the disk.",
    "peers": "The same work by fastio and by other libraries, in interleaved rounds.",
    "io": "Every tool at every size: bandwidth, and its cost in processor time.",
    "model": "Time to save and to load real models.",
    "checkpoint": "How long training waits for its checkpoints, and how fast they are restored.",
    "tools": "Which tool is the best when dictionaries are rebuilt, and how close each way of choosing comes to it.",
    "tune": "What this machine's dictionaries know after they tried the tools.",
    "contend": "Bandwidth while other processes use the memory's bandwidth, and what those processes lose.",
    "store": "The block store for activations, beside fio on the same file.",
    "offload": "Training with activations on the disk, beside plain training.",
    "hybrid": "Training with parameters and gradients in host memory.",
}


def page(documents: Sequence[Document]) -> str:
    """The page. Raises DocumentError where a known finding is damaged, ImportError without matplotlib or jinja2."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.globals.update(heading=cells.heading, is_number=cells.is_number, cells=_cells, origins=_ORIGINS)
    limits = sample_charts.disk_limits(documents)
    first = checked(documents[0], lambda document: _told(facts(document.machine)))
    sections = [checked(document, lambda own: _section(own, first, limits)) for document in documents]
    return environment.get_template("page.html.jinja").render(
        title=TITLE,
        css=(_HERE / "page.css").read_text(encoding="utf-8"),
        machine=first,
        sections=sections,
        agreement=list(agreement.tables(documents)),
    )


def _section(document: Document, first: Mapping[str, str], limits: dict[str, float]) -> dict[str, Any]:
    """What the page shows of one document. ``first`` are the facts of the first document's machine."""
    tables = document_tables.tables(document)
    figures = summary_tables.figures(document.summaries)
    tables += [figures] if document.summaries and figures not in tables else []
    goals = [goal for goal in document.findings.get("goals") or () if isinstance(goal, Mapping)]
    untold = {
        name.replace("_", " "): json.dumps(found, indent=1) for name, found in document_tables.untold(document).items()
    }
    return {
        "document": document,
        "about": _ABOUT.get(document.command, ""),
        "verdict": verdict.lines(document.summaries) if document.command == "peers" else [],
        "in_short": verdict.tables(document.summaries) if document.command == "peers" else [],
        "run": _told(
            {
                "Measured": document.measured.date.replace("T", " ").replace("+00:00", " UTC"),
                "Host": document.measured.host,
                "Command": document.measured.arguments,
            }
        ),
        "goals": [bool(goal.get("met")) for goal in goals],
        "machine": {name: text for name, text in _told(facts(document.machine)).items() if first.get(name) != text},
        "settings": _told({key.replace("_", " "): setting(value) for key, value in document.settings.items()}),
        "sheets": [(sheet, page_charts.drawings(document, sheet)) for sheet in page_charts.sheets(document, limits)],
        "tables": tables,
        "untold": {name: text for name, text in untold.items() if len(text) <= _MOST_TEXT},
        "too_long": [name for name, text in untold.items() if len(text) > _MOST_TEXT],
    }


def _told(texts: Mapping[str, str]) -> dict[str, str]:
    """The texts that are not empty."""
    return {name: text for name, text in texts.items() if text}


def _cells(table: ResultTable, row: Sequence[Cell]) -> Iterator[tuple[str, str]]:
    """The texts of a row, each with its CSS class (or "")."""
    crowded = len(table.columns) > _FEW
    for column, text in zip(table.columns, cells.texts(table, row), strict=True):
        yield text, "number" if cells.is_number(column) else _kind(text, crowded)


def _kind(text: str, crowded: bool) -> str:
    if text in _VERDICTS:
        return text
    if not crowded:
        return "wrap" if len(text) >= _WORDS else "short"
    return "prose" if len(text) >= _PROSE else "words" if len(text) >= _WORDS else ""
