"""The words of the errors in docs/troubleshooting.md are those of the library's messages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import fastio

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
# Python's, torch's, fsspec's and the system's own.
OTHERS = {
    "Weights only load failed",
    "No space left on device",
    "File too large",
    "Permission denied",
    "Operation not permitted",
    "DefaultCPUAllocator: can't allocate memory",
    "CUDA out of memory",
    "Install s3fs",
    "Protocol not known",
}


def literals() -> str:
    """All text in the library's sources, of Python's as it joins it."""
    native = "\n".join(path.read_text() for path in sorted((ROOT / "native").rglob("*.cpp")))
    trees = (ast.parse(path.read_text()) for path in Path(fastio.__file__).parent.rglob("*.py"))
    nodes = (node for tree in trees for node in ast.walk(tree))
    return native + "\n".join(
        node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def test_messages_are_the_librarys() -> None:
    cells = re.findall(r"^\| (.*?[^\\]) \|", PAGE.read_text(), re.MULTILINE)
    phrases = {phrase for cell in cells for phrase in re.findall(r"`([^`]+)`", cell)} - OTHERS
    assert len(phrases) > 20
    said = literals()
    missing = {
        phrase for phrase in phrases for part in phrase.split("…") if part.strip() and part.strip(" '") not in said
    }
    assert not missing
