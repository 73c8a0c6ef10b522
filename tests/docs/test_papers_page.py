"""docs/papers.md names files, tests and commands that exist, and has the rows of `fastio-bench papers`.

Each mechanism stands with a file that cites its paper, a test, what measures it, and how it differs.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fastio_bench.commands import SUBCOMMANDS
from fastio_bench.papers import page

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


@pytest.mark.parametrize(
    ("paper", "cells"), MECHANISMS, ids=lambda value: value if isinstance(value, str) else value[0]
)
def test_a_mechanism_has_a_file_that_cites_its_paper_a_test_and_a_command(paper: str, cells: list[str]) -> None:
    _, where, test, measured, state = cells
    assert re.match("as written|differs: |in the run|in simulations", state), state
    texts = [source.read_text() for name in re.findall(r"`(\w+/[^`]+)`", where) for source in _sources(ROOT / name)]
    assert any(paper in text for text in texts), where
    assert re.search(r"`tests/\w+/test_\w+\.py`", test), test
    commands = re.findall(r"`fastio-bench (\w+)", measured)
    assert commands or measured == NO_FIGURE or measured.startswith("`python -m fastio_bench."), measured
    assert set(commands) <= set(SUBCOMMANDS), measured


def _sources(path: Path) -> list[Path]:
    return [each for each in path.rglob("*") if each.suffix in (".py", ".cpp", ".hpp")] if path.is_dir() else [path]
