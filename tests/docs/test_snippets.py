"""Every python block of README and docs runs as it stands, page by page, in a folder of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import snippets

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
WITH_BLOCKS = [page for page in PAGES if any(snippets.blocks(page))]


def name(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The error of each page, "" where there is none."""
    folder = tmp_path_factory.mktemp("snippets")
    out = folder / "outcomes.json"
    command = [sys.executable, snippets.__file__, str(out), *map(str, WITH_BLOCKS)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FASTIO_DICTIONARY_DIR": str(folder)}
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return {name(Path(page)): error for page, error in json.loads(out.read_text()).items()}


@pytest.mark.parametrize("page", [name(page) for page in WITH_BLOCKS])
def test_blocks_of_a_page_run(page: str, outcomes: dict[str, str]) -> None:
    assert outcomes[page] == "", outcomes[page]


def test_a_wrong_block_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n\n```python\none = 1\n```\n\n```python\nassert one == 2\n```\n")
    assert "block at line 8" in snippets.run(page)
    wrong = 'import os\n\nassert os.environ["RANK"] == os.environ["WORLD_SIZE"], os.environ["RANK"]\n'
    page.write_text(f"<!-- snippet: 2 ranks -->\n```python\n{wrong}```\n")
    monkeypatch.chdir(tmp_path)
    assert "AssertionError: 0" in snippets.run(page)
    assert "AssertionError: 1" in snippets.run(page)
    page.write_text("<!-- snippet: compile, needs a GPU -->\n```python\nmissing()\n```\n")
    assert snippets.run(page) == ""
    page.write_text("<!-- snippet: compile, needs a GPU -->\n```python\nmissing(\n```\n")
    assert "SyntaxError" in snippets.run(page)


@pytest.mark.parametrize("program", ["fastio", "fastio-bench"])
def test_commands_that_pages_name_exist(program: str) -> None:
    command = [str(Path(sys.executable).parent / program), "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    known = {line.split()[0] for line in told.partition("Commands:")[2].splitlines() if line.strip()}
    assert known
    for page in PAGES:
        named = set(re.findall(rf"(?:`|\$ ){program} ([a-z][a-z-]*)\b", page.read_text(), re.MULTILINE))
        named -= {"fsyncs"}  # the one that docs/extending.md adds
        assert named <= known, f"{name(page)}: {named - known}"


def test_readme_is_short() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) < 200
