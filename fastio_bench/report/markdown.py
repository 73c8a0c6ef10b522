"""Writes result tables as Markdown. Pure."""

from __future__ import annotations

import html
import re

from fastio_bench.report import cells
from fastio_bench.report.table import ResultTable

_MANY = 24  # rows; longer tables are folded


def table(table: ResultTable, by: str = "") -> str:
    """The table with its title, which has the origin of the figures. ``by`` is the command that made it."""
    command = f"`fastio-bench {by}`" if by else ""
    told = ", ".join(filter(None, (table.origin, command, escape(table.reference))))
    lines = [plain(table)]
    if len(table.rows) > _MANY:
        lines = [f"<details><summary>{len(table.rows)} rows</summary>", "", *lines, "", "</details>"]
    note = escape(table.note).rstrip(".")
    ending = ["", f"{note[0].upper()}{note[1:]}."] if note else []
    return "\n".join([f"**{escape(table.title)}** ({told})", "", *lines, *ending])


def plain(table: ResultTable) -> str:
    """The rows alone, below their headings."""
    lines = [
        _row([cells.heading(column) for column in table.columns]),
        "|" + "|".join("---:" if cells.is_number(column) else "---" for column in table.columns) + "|",
        *(_row(cells.texts(table, row)) for row in table.rows),
    ]
    return "\n".join(lines)


def escape(text: str) -> str:
    """The text on one line, with all markup escaped."""
    return re.sub(r"([\\`*_|\[\]#])", r"\\\1", html.escape(" ".join(text.split()), quote=False))


def _row(texts: list[str]) -> str:
    return "| " + " | ".join(escape(text) for text in texts) + " |"
