"""docs/papers.md names files and tests that exist, and the command that answers each of the papers' tables."""

from __future__ import annotations

import re
from pathlib import Path

from fastio_bench.papers.answers import ANSWERS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "papers.md").read_text()


def test_files_and_tests_exist() -> None:
    named = set(re.findall(r"`((?:fastio|fastio_bench|native|tests)/[^`]+)`", PAGE))
    assert len(named) > 40
    assert not [name for name in named if not (ROOT / name).exists()]


def test_every_answer_has_its_command() -> None:
    missing = [
        (table, answer.line)
        for table, answers in ANSWERS.items()
        for answer in answers
        if not re.search(rf"^\|.* {table.partition('-')[2]} \|.*`{re.escape(answer.line)}`", PAGE, re.MULTILINE)
    ]
    assert not missing
