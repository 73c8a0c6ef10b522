"""``make picture``: bandwidth by work beside torch, safetensors and the disk's limit, as two SVGs: light and dark.

The same results give the same bytes.
"""

from __future__ import annotations

import html
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from fastio_bench.harness import whole_files
from fastio_bench.harness.stats import Summary
from fastio_bench.machine import disk_limit, memory_limit
from fastio_bench.peers import compare
from fastio_bench.peers.goals import MAPPED
from fastio_bench.report import tool_colors
from fastio_bench.report.documents import Document, DocumentError, read_folder

TOOLS = ("fastio", "safetensors", "torch")
_TITLES = {
    compare.DURABLE: "durable save",
    compare.CACHED: "save without fsync",
    compare.COLD: "load from the disk",
    compare.WARM: "load from the page cache",
}
_INKS = {"light": ("#1d2125", "#5d646c", "#c9ccc6"), "dark": ("#e6e8ea", "#9ea6ae", "#3a4047")}
_FONT = 'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"'
_WIDTH, _LEFT, _RIGHT = 720, 186, 700  # of the picture, and of its bars
_BAR, _GAP, _TOP = 15, 4, 62
_LETTER = 7  # no letter of a figure is wider


def draw(document: Document, mode: str) -> str:
    """The picture as SVG, for a ``light`` or ``dark`` page. Raises ValueError if torch or fastio is missing."""
    ink, muted, rule = _INKS[mode]
    workload = max((s for s in document.summaries if s.tool == "fastio"), key=lambda s: s.nbytes, default=None)
    if workload is None:
        raise ValueError("no figure of fastio")
    own = {(s.work, s.tool): s for s in document.summaries if s.workload == workload.workload}
    works = [work for work in _TITLES if {(work, "fastio"), (work, "torch")} <= own.keys()]
    if not works:
        raise ValueError("no work with figures of both torch and fastio")
    shown = {work: [own[work, tool] for tool in TOOLS if (work, tool) in own] for work in works}
    copying = [s.bandwidth for row in shown.values() for s in row if not _is_mapped(s)]
    bounds = {work: bound for work in works if (bound := _limit(own, work))}
    scale = (_RIGHT - 110 - _LEFT) / max([*copying, *bounds.values()])
    pieces, y = [], _TOP
    for work in works:
        began = y
        rows = shown[work]
        middle = y + len(rows) * (_BAR + _GAP) / 2
        pieces.append(_text(_LEFT - 10, middle + 3, _TITLES[work], ink, anchor="end"))
        for one in rows:
            pieces += _bar(one, y, scale, bounds.get(work, 0.0), ink, muted, mode)
            y += _BAR + _GAP
        if work in bounds:
            x = _LEFT + bounds[work] * scale
            pieces.append(
                f'<path d="M{x:.1f} {began - 4}V{y}" stroke="{ink}" stroke-width="1.5" stroke-dasharray="4 3"/>'
            )
        y += 16
    height = y + 22
    legend = list(_legend(ink, mode, bool(bounds)))
    told = " · ".join(filter(None, (f"{workload.workload}, {workload.nbytes / 1e9:.2f} GB", *_where(document))))
    label = html.escape(f"Bandwidth of {', '.join(TOOLS)} in MB/s, and the limit of the disk: {told}")
    body = "\n".join(
        [
            _text(0, 18, "MB/s: more is better", ink, size=15, weight=600),
            *legend,
            f'<path d="M{_LEFT} {_TOP - 6}V{y - 12}" stroke="{rule}"/>',
            *pieces,
            _text(0, height - 8, told, muted, size=11.5),
        ]
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" {_FONT} font-size="13">\n{body}\n</svg>\n'
    )


def _bar(one: Summary, y: float, scale: float, bound: float, ink: str, muted: str, mode: str) -> Iterator[str]:
    middle = y + _BAR - 3.5
    if _is_mapped(one):  # it copies nothing: a bar of its figure would dwarf what was read into memory
        yield _text(_LEFT + 4, middle, f"{one.tool} maps the pages and copies nothing", muted, size=11.5)
        return
    width = max(one.bandwidth * scale, 1.0)
    color = tool_colors.in_files(one.tool, mode)
    yield f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="2" fill="{color}"/>'
    ratio = f" ({one.ratio:.1f}x torch)" if one.ratio is not None and one.tool == "fastio" else ""
    figure = f"{one.bandwidth / 1e6:,.0f}{ratio}"
    gap = bound * scale - width  # the limit's line must not cross the figure
    is_crossed = 0 < gap < 6 + _LETTER * len(figure)
    yield _text(_LEFT + width + (gap + 6 if is_crossed else 6), middle, figure, ink, size=12)


def _legend(ink: str, mode: str, bounded: bool) -> Iterator[str]:
    x = 0.0
    for tool in TOOLS:
        yield f'<rect x="{x}" y="30" width="11" height="11" rx="2" fill="{tool_colors.in_files(tool, mode)}"/>'
        yield _text(x + 16, 40, tool, ink, size=12)
        x += 16 + 7.2 * len(tool) + 16
    if bounded:
        yield f'<path d="M{x + 4} 29V43" stroke="{ink}" stroke-width="1.5" stroke-dasharray="4 3"/>'
        yield _text(x + 12, 40, "the limit of the disk, or of copying memory", ink, size=12)


def _limit(own: dict[tuple[str, str], Summary], work: str) -> float:
    tool = memory_limit.TOOL if work == compare.WARM else disk_limit.TOOL
    found = own.get((work, tool))
    return found.bandwidth if found else 0.0


def _is_mapped(one: Summary) -> bool:
    return one.work == compare.WARM and one.tool in MAPPED


def _where(document: Document) -> Iterator[str]:
    """The machine, the versions, the command, the date and the host, as far as the document has them."""
    machine = document.machine
    if machine.get("cores"):
        yield f"{machine['cores']} cores, {(machine.get('filesystem') or {}).get('kind', '')}"
    versions = machine.get("versions") or {}
    if "torch" in versions:
        yield f"torch {versions['torch']}"
    yield f"fastio-bench {document.command}"
    if document.measured.date:
        yield document.measured.date[:10]
    if document.measured.host:
        yield document.measured.host


def _text(x: float, y: float, text: str, color: str, size: float = 13, anchor: str = "start", weight: int = 400) -> str:
    look = f'font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" fill="{color}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {look}>{html.escape(text)}</text>'


def main(arguments: Sequence[str]) -> None:
    """Write ``bandwidth-light.svg`` and ``bandwidth-dark.svg`` into a folder (second argument) from results (first)."""
    results, folder = map(Path, arguments)
    try:
        runs = [one for one in read_folder(results) if one.command == "peers" and not one.interrupted]
        if not runs:
            raise DocumentError(results, "no run of `fastio-bench peers`", "measure first")
        # Of several runs, the one with the largest object: its figures are those of the disk.
        run = max(runs, key=lambda one: max((s.nbytes for s in one.summaries), default=0))
        pictures = {mode: draw(run, mode) for mode in _INKS}
    except (DocumentError, ValueError) as error:
        sys.exit(str(error))
    folder.mkdir(parents=True, exist_ok=True)
    for mode, picture in pictures.items():
        whole_files.write(folder / f"bandwidth-{mode}.svg", picture)


if __name__ == "__main__":
    main(sys.argv[1:])
