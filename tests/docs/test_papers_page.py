"""docs/papers.md names files, tests and commands that exist, and has the rows of `fastio-bench papers`.

Each mechanism stands with a file that cites its paper, a test, what measures it, and how it differs.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fastio_bench.commands import SUBCOMMANDS
from fastio_bench.papers import page
from fastio_bench.papers.rows.row import MODEL, NONE, NOTHING
from fastio_bench.report import cells
from fastio_bench.report.markdown import escape

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "papers.md").read_text()
MECHANISMS = [
    (paper, line.strip("| ").split(" | "))
    for paper, text in re.findall(r"^### (\w+)\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    for line in text.splitlines()
    if line.startswith("| ") and not line.startswith("| mechanism")
]
NO_FIGURE = "no figure of the paper"


def test_files_and_tests_exist() -> None:
    named = set(re.findall(r"`((?:fastio|fastio_bench|native|tests)/[^`]+)`", PAGE))
    assert len(named) > 40
    assert not [name for name in named if not (ROOT / name).exists()]


def test_table_is_that_of_the_command() -> None:
    """docs/papers.md and `fastio-bench papers` say the same; what the page must have is what this compares with."""
    assert page.markdown() in PAGE


def test_figures_have_every_row_and_todays_models() -> None:
    """docs/papers-figures.md is of one day; what models say must be what they say now."""
    text = (ROOT / "docs" / "papers-figures.md").read_text()
    table = page.table([])
    shown = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(shown) == len(table.rows)
    for line, row in zip(shown, table.rows, strict=True):
        assert line.startswith("| " + " | ".join(escape(str(cell)) for cell in row[:3]) + " |")
        if row[6] in (MODEL, NONE, NOTHING):
            assert line == "| " + " | ".join(escape(cell) for cell in cells.texts(table, row[:-1])) + " |"


@pytest.mark.parametrize(("paper", "told"), MECHANISMS, ids=lambda value: value if isinstance(value, str) else value[0])
def test_a_mechanism_has_a_file_that_cites_its_paper_a_test_and_a_command(paper: str, told: list[str]) -> None:
    _, where, test, measured, state = told
    assert re.match("as written|differs: |in the run|in simulations", state), state
    texts = [source.read_text() for name in re.findall(r"`(\w+/[^`]+)`", where) for source in _sources(ROOT / name)]
    assert any(paper in text for text in texts), where
    assert re.search(r"`tests/\w+/test_\w+\.py`", test), test
    commands = re.findall(r"`fastio-bench (\w+)", measured)
    assert commands or measured == NO_FIGURE or measured.startswith("`python -m fastio_bench."), measured
    assert set(commands) <= set(SUBCOMMANDS), measured


def _sources(path: Path) -> list[Path]:
    return [each for each in path.rglob("*") if each.suffix in (".py", ".cpp", ".hpp")] if path.is_dir() else [path]
