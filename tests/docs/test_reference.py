"""Every public name is in the reference, and the pages' links lead somewhere."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import fastio

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
PARTS = ("checkpoint", "dicts", "distributed", "hybrid", "models", "offload", "testing", "volumes")
# What `import fastio` warms up, and a detail of contexts.
INTERNAL = {"fastio.dicts.warm_up", "fastio.dicts.small_class"}


def documented() -> set[str]:
    """The names that the pages of the reference show."""
    pages = (REPOSITORY / "docs" / "reference").glob("*.md")
    return {name for page in pages for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)}


@pytest.mark.parametrize("module", ["", *PARTS])
def test_public_names_are_in_the_reference(module: str) -> None:
    home = importlib.import_module(f"fastio.{module}" if module else "fastio")
    shown = {name.rpartition(".")[2]: name for name in documented()}
    names = {f"{home.__name__}.{name}" for name in home.__all__ if not name.startswith("_")} - INTERNAL
    missing = {name for name in names if name not in documented() and not _same(name, shown)}
    assert not missing


def _same(name: str, shown: dict[str, str]) -> bool:
    """Whether the reference shows the object under another name, as an error in fastio.errors."""
    other = shown.get(name.rpartition(".")[2])
    return other is not None and _find(other) is _find(name)


def _find(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def test_tab_completion_shows_only_what_is_documented() -> None:
    shown = {name.rpartition(".")[2]: name for name in documented()}
    public = {name for name in dir(fastio) if not name.startswith("_") and name in fastio.__all__}
    assert not {name for name in public if name not in shown}


def test_documented_names_exist() -> None:
    for name in sorted(documented()):
        if "integrations" not in name and name != "fastio.transports.transport":
            assert _find(name) is not None, name


def test_relative_links_lead_somewhere() -> None:
    dead = []
    for page in PAGES:
        for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)(#[^)\s]*)?\)", page.read_text()):
            file = page if not target else (page.parent / target).resolve()
            if not file.exists():
                dead.append(f"{page.name}: {target}")
            elif anchor and file.suffix == ".md" and anchor[1:] not in anchors(file):
                dead.append(f"{page.name}: {target}{anchor}")
    assert not dead


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the site and code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.replace("`", "")).strip().lower() for heading in headings)
    return {re.sub(r"[\s-]+", "-", heading) for heading in plain}
