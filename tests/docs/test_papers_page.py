"""docs/papers.md names files and tests that exist, and has the rows of `fastio-bench papers`."""

from __future__ import annotations

import re
from pathlib import Path

from fastio_bench.papers import page

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "papers.md").read_text()


def test_files_and_tests_exist() -> None:
    named = set(re.findall(r"`((?:fastio|fastio_bench|native|tests)/[^`]+)`", PAGE))
    assert len(named) > 40
    assert not [name for name in named if not (ROOT / name).exists()]


def test_table_is_that_of_the_command() -> None:
    """docs/papers.md and `fastio-bench papers` say the same; what the page must have is what this compares with."""
    assert page.markdown() in PAGE
