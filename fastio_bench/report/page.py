"""One self-contained HTML page of a results folder: no script, nothing fetched, light and dark, desk and phone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from fastio_bench.machine.machine_facts import facts, setting
from fastio_bench.peers import agreement
from fastio_bench.report import (
    document_tables,
    page_charts,
    page_hybrid,
    page_plots,
    page_table,
    page_timeline,
    summary_tables,
)
from fastio_bench.report.documents import Document, checked
from fastio_bench.report.page_plots import Gallery

TITLE = "What fastio measured here"
_MOST_TEXT = 10_000  # characters of a finding that no table shows
_ABOUT = {
    "doctor": "What is here and what is not, the way that bytes really take, and the limit of the disk.",
    "peers": "The same work by fastio and by what one would use instead, in interleaved rounds.",
    "io": "Every tool at every size: bandwidth, and what it costs in processor time.",
    "model": "Time to save and to load real models.",
    "checkpoint": "How long a training waits for its checkpoints, and how fast they come back.",
    "tools": "How the best tool spreads when dictionaries are rebuilt, and what choosing first, best and live reaches.",
    "tune": "What this machine's dictionaries know after trying the tools.",
    "contend": "What remains while other processes take the memory's bandwidth, and what those lose.",
    "store": "The block store that activations go to, beside fio on the very same file.",
    "offload": "Training with activations on the disk, beside plain training.",
    "hybrid": "Training with parameters and gradients in host memory.",
}


def page(documents: Sequence[Document]) -> str:
    """The page. Raises DocumentError where a known finding is damaged, ImportError without matplotlib."""
    css = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    limits = page_plots.disk_limits(documents)
    first = documents[0].machine

    def section(document: Document) -> str:
        return "\n".join(_section(document, first, limits))

    sections = [checked(document, section) for document in documents]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{TITLE}</title>",
            f"<style>\n{css}</style>",
            "</head>",
            "<body>",
            "<header>",
            '<p class="eyebrow">fastio-bench report</p>',
            f"<h1>{TITLE}</h1>",
            checked(documents[0], lambda document: _facts(facts(document.machine))),
            f"<nav><ul>{''.join(checked(document, _entry) for document in documents)}</ul></nav>",
            "</header>",
            "<main>",
            *sections,
            *_compared(documents),
            "</main>",
            '<footer class="quiet"><p>MB are 10<sup>6</sup> bytes, MiB 2<sup>20</sup>. Every table says where its '
            "figures come from: measured here, from the paper, simulated or calibrated. "
            "All samples are in the JSON files that this page was made of.</p></footer>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _entry(document: Document) -> str:
    goals = [goal for goal in document.findings.get("goals") or () if isinstance(goal, Mapping)]
    told = []
    if document.interrupted:
        told.append('<span class="label interrupted">interrupted</span>')
    if goals:
        told.append(f"<span>{sum(bool(goal.get('met')) for goal in goals)} of {len(goals)} goals met</span>")
    elif document.samples:
        told.append(f"<span>{document.samples:,} samples</span>")
    if document.failures:
        told.append(f'<span class="missed">{len(document.failures)} failed</span>')
    return f'<li><a href="#run-{document.slug}"><b>{escape(document.title)}</b>{" ".join(told)}</a></li>'


def _section(document: Document, first: Mapping[str, Any], limits: dict[str, float]) -> Iterator[str]:
    yield f'<section id="run-{document.slug}">'
    yield f"<h2>{escape(document.title)}</h2>"
    yield f'<p class="quiet">{escape(_ABOUT.get(document.command, ""))}</p>'
    if document.interrupted:
        yield '<p class="callout"><span class="label interrupted">interrupted</span> This run was ended early.</p>'
    if document.machine != first:
        other = {name: value for name, value in facts(document.machine).items() if facts(first).get(name) != value}
        yield _facts(other)
    yield _facts({key.replace("_", " "): setting(value) for key, value in document.settings.items()})
    for gallery in (
        *page_plots.bandwidths(document, limits),
        *page_plots.comparison(document),
        *page_plots.dictionary(document),
        *page_charts.galleries(document),
        *page_timeline.galleries(document),
        *page_hybrid.galleries(document),
    ):
        yield _gallery(gallery)
    yield from _tables(document)
    if document.notes:
        yield "<h3>Notes</h3>"
        yield f'<ul class="notes">{"".join(f"<li>{escape(note)}</li>" for note in document.notes)}</ul>'
    yield "</section>"


def _compared(documents: Sequence[Document]) -> Iterator[str]:
    """Whether runs of the same say the same, where the folder has several."""
    tables = [page_table.table(exhibit) for exhibit in agreement.exhibits(documents)]
    if tables:
        yield '<section id="agreement">\n<h2>Do runs of peers agree?</h2>'
        yield from [*tables, "</section>"]


def _tables(document: Document) -> Iterator[str]:
    tables = document_tables.tables(document)
    yield from map(page_table.table, tables)
    figures = summary_tables.figures(document.summaries)
    if document.summaries and figures not in tables:
        yield page_table.table(figures, grouped=2)
    large = []
    for name, found in document_tables.untold(document).items():
        text, title = json.dumps(found, indent=1), name.replace("_", " ")
        if len(text) > _MOST_TEXT:
            large.append(title)
        else:
            yield page_table.folded(title, f'<div class="scroll" tabindex="0"><pre>{escape(text)}</pre></div>')
    if large:
        told = f"Too long for this page, in {document.path.name}: {', '.join(large)}."
        yield f'<p class="quiet">{escape(told)}</p>'


def _gallery(gallery: Gallery) -> str:
    legend = "".join(
        f'<li><i class="{shape}" style="color: var(--{color})"></i>{escape(text)}</li>'
        for shape, color, text in gallery.legend
    )
    plots = "".join(
        f'<figure class="{"wide" if plot.wide else "panel"}" data-plot="{escape(plot.kind)}">'
        f"<figcaption>{escape(plot.title)}</figcaption><div>{plot.svg}</div></figure>"
        for plot in gallery.plots
    )
    signs = f'<ul class="legend">{legend}</ul>' if legend else ""
    return (
        f'<h3>{escape(gallery.title)}</h3><p class="quiet">{escape(gallery.text)}</p>'
        f'{signs}<div class="plots">{plots}</div>'
    )


def _facts(told: Mapping[str, str]) -> str:
    shown = [
        f'<div class="{_room(text)}"><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>'
        for name, text in told.items()
        if text
    ]
    return f"<dl>{''.join(shown)}</dl>" if shown else ""


def _room(text: str) -> str:
    """The class of a fact by the room it takes."""
    return "short" if len(text) < 24 else "long" if len(text) < 90 else "longest"
