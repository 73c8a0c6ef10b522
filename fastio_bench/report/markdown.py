"""Exhibits as Markdown tables. Pure."""

from __future__ import annotations

import html
import re

from fastio_bench.report import cells
from fastio_bench.report.table import ResultTable

_MANY = 24  # rows: more are folded


def table(exhibit: ResultTable, by: str = "") -> str:
    """The table under its title, which says where its figures come from; ``by`` is the command that made it."""
    command = f"`fastio-bench {by}`" if by else ""
    told = ", ".join(filter(None, (exhibit.origin, command, escape(exhibit.reference))))
    lines = [
        _row([cells.heading(column) for column in exhibit.columns]),
        "|" + "|".join("---:" if cells.is_number(column) else "---" for column in exhibit.columns) + "|",
        *(_row(cells.texts(exhibit, row)) for row in exhibit.rows),
    ]
    if len(exhibit.rows) > _MANY:
        lines = [f"<details><summary>{len(exhibit.rows)} rows</summary>", "", *lines, "", "</details>"]
    note = escape(exhibit.note).rstrip(".")
    ending = ["", f"{note[0].upper()}{note[1:]}."] if note else []
    return "\n".join([f"**{escape(exhibit.title)}** ({told})", "", *lines, *ending])


def escape(text: str) -> str:
    """Text in which nothing is markup, on one line."""
    return re.sub(r"([\\`*_|\[\]#])", r"\\\1", html.escape(" ".join(text.split()), quote=False))


def _row(texts: list[str]) -> str:
    return "| " + " | ".join(escape(text) for text in texts) + " |"
