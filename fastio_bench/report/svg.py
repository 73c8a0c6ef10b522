"""Renders a matplotlib figure as inline SVG with the page's colours, light or dark, and text that stays text.

matplotlib does not know CSS variables, so figures are drawn in placeholder colours, which are replaced.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fastio_bench.report import tool_colors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SERIES = len(tool_colors.LIGHT)  # series colours in page.css
HEAT = 6
INK, MUTED, RULE, PAPER = "#010101", "#010102", "#010103", "#010104"
_LONGEST = 24  # characters of a name in a figure, at most
_POINTS = 72 / 96  # of a pixel
_NAMES = {INK: "ink", MUTED: "muted", RULE: "rule", PAPER: "panel"}
_NAMES |= {f"#0102{number:02x}": f"series-{number}" for number in range(SERIES)}
_NAMES |= {f"#0103{number:02x}": f"heat-{number}" for number in range(HEAT)}
_NAMES |= {f"#0104{number:02x}": f"heat-ink-{number}" for number in range(HEAT)}
_SETTINGS: Any = {
    "svg.fonttype": "none",  # text that can be searched and takes the page's font
    "text.parse_math": False,  # a $ in a name is a $
    "font.size": 9.5,
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "ytick.major.size": 0.0,
    "patch.edgecolor": PAPER,
}


def series(number: int) -> str:
    """The placeholder colour of a series; colours repeat after the last."""
    return f"#0102{number % SERIES:02x}"


def heat(step: int) -> tuple[str, str]:
    """The placeholder colours of a cell and its text, at a step of the scale (0 is the best)."""
    return f"#0103{step:02x}", f"#0104{step:02x}"


def short(name: str) -> str:
    """The name, shortened so that it fits beside a figure."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}\u2026"


@contextmanager
def drawing(width: float, height: float) -> Iterator[Figure]:
    """Yield a figure of that size in CSS pixels. What is drawn inside the block has the page's style."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS):
        yield Figure(figsize=(width / 96, height / 96), layout="constrained", facecolor="none")


def render(figure: Figure, name: str, description: str) -> str:
    """The figure as an ``<svg>`` element. ``name`` must be unique on the page: it starts each of the element's ids."""
    import matplotlib

    written = io.StringIO()
    with matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": name}):
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = written.getvalue()
    text = text[text.index("<svg") :]
    head, rest = text.split(">", 1)
    found = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', head)
    if found is None:
        raise ValueError("matplotlib wrote an SVG without a viewBox")
    width, height = (float(size) / _POINTS for size in found.groups())
    rest = re.sub(r"<metadata>.*?</metadata>", "", rest, flags=re.DOTALL)
    rest = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{name}-", rest)
    rest = re.sub(r"<style.*?</style>", "", rest, flags=re.DOTALL)  # page.css has the style of all figures
    rest = re.sub(r"(?<=: )#010[1-4][0-9a-f]{2}", _variable, rest)
    rest = re.sub(r"(font: [^;\"]*?px) [^;\"]+", r"\1 var(--sans)", rest)
    label = html.escape(description)
    return (
        f'<svg role="img" aria-label="{label}" viewBox="{found.group(0)[9:-1]}" '
        f'width="{width:.0f}" height="{height:.0f}">{rest.strip()}'
    )


def _variable(color: re.Match[str]) -> str:
    name = _NAMES.get(color.group())
    return f"var(--{name})" if name else color.group()
