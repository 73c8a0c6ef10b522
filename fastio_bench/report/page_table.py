"""An exhibit as an HTML table: it scrolls inside its own box, and says where its figures come from. Pure."""

from __future__ import annotations

from html import escape

from fastio_bench.report import cells
from fastio_bench.report.table import CALIBRATED, MEASURED, PAPER, SIMULATED, ResultTable

_CLASSES = {MEASURED: "measured", PAPER: "paper", SIMULATED: "simulated", CALIBRATED: "calibrated"}
_VERDICTS = ("met", "missed")
_GOALS = "goals"  # the table whose rows are laid out anew on a phone, with the verdict first
_WORDS, _PROSE = 28, 60  # characters from which on a cell wants room to wrap
_FEW = 3  # columns, among which words need no room kept for them
_MANY = 24  # rows: more are folded


def table(exhibit: ResultTable, grouped: int = 0) -> str:
    """The table with its heading, label, source and note; a long one is folded.

    ``grouped``: so many columns at the left name groups of rows, which a line parts.
    """
    origin = _CLASSES.get(exhibit.origin, "paper")
    label = f'<span class="label {origin}">{escape(exhibit.origin)}</span>'
    if len(exhibit.rows) > _MANY:
        return folded(exhibit.title, f"<p>{label}</p>\n{_body(exhibit, grouped)}")
    return f"<h3>{escape(exhibit.title)} {label}</h3>\n{_body(exhibit, grouped)}"


def folded(title: str, content: str) -> str:
    """What only those see who ask for it."""
    return f"<details><summary>{escape(title)}</summary>\n{content}\n</details>"


def _body(exhibit: ResultTable, grouped: int) -> str:
    numbers = [cells.is_number(column) for column in exhibit.columns]
    crowded = len(numbers) > _FEW
    head = "".join(_head(column) for column in exhibit.columns)
    rows: list[str] = []
    for place, row in enumerate(exhibit.rows):
        begins = place > 0 and [*row[:grouped]] != [*exhibit.rows[place - 1][:grouped]]
        texts = cells.texts(exhibit, row)
        shown = "".join(_cell(text, number, crowded) for text, number in zip(texts, numbers, strict=True))
        rows.append(f"<tr{_class('group' if begins else '')}>{shown}</tr>")
    return "\n".join(
        [
            *([f'<p class="quiet">{escape(exhibit.reference)}</p>'] if exhibit.reference else []),
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(exhibit.title)}">'
            f"<table{_class(_GOALS if exhibit.name == _GOALS else '')}>",
            *([f"<thead><tr>{head}</tr></thead>"] if any(exhibit.columns) else []),
            "<tbody>",
            *rows,
            "</tbody></table></div>",
            *([f'<p class="quiet note">{escape(exhibit.note)}</p>'] if exhibit.note else []),
        ]
    )


def _head(column: str) -> str:
    kind = "number" if cells.is_number(column) else ""
    return f"<th{_class(kind)}>{escape(cells.heading(column))}</th>"


def _cell(text: str, number: bool, crowded: bool) -> str:
    kind = "number" if number else text if text in _VERDICTS else ""
    if not kind and not crowded:
        kind = "wrap" if len(text) >= _WORDS else "short"
    elif not kind and len(text) >= _WORDS:
        kind = "prose" if len(text) >= _PROSE else "words"
    return f"<td{_class(kind)}>{escape(text)}</td>"


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""
